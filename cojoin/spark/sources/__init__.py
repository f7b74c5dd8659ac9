"""The sources of an input's rows."""
