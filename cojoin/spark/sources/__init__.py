"""Where an input's rows come from."""
