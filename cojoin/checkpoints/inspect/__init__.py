"""A checkpoint as people look at it: read, and explained in sentences."""
