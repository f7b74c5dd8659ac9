"""What runs for each micro-batch: rows packed by key group, the one call, its outputs unpacked."""
