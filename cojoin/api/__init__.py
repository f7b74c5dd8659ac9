"""The functions that users call: inputs are connected, joined, and executed on Spark or in this process."""
