"""The steps of a micro-batch: packing rows by key group, one call per key group, unpacking the outputs."""
