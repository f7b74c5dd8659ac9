"""Inspection of a checkpoint: reading its state, and explaining it in sentences."""
