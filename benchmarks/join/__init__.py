"""The same join by many engines, side by side: ``python -m benchmarks.join``.

Each contender reads the same parquet files in their order on two cores, gives each trade the customer in force at its
event time, and writes Delta or parquet. They run in turns, each in a process of its own; every result is compared with
an oracle, outside of what is timed. What counts are ratios to the floor of the same round: plain Spark that reads,
shuffles by key and writes the same rows.
"""
