"""The files of a query's checkpoint: its description, lease, manifests, snapshots and progress."""
