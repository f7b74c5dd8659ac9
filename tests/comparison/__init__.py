"""The comparison of two versions, against multisets of Python."""
