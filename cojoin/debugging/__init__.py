"""Time travel: one key of a real checkpoint, taken out of a snapshot and stepped through in this process."""
