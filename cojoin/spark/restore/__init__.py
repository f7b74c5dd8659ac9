"""The restoration of a checkpoint: a new query that begins with the state of another one."""
