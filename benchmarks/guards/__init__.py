"""The guards of the speed of each way through cojoin: its time over that of plain Spark, beside a bound.

``joins`` has the ways through files, ``replay`` the one through Kafka. A way and its floor run in one session, one
after the other, and the result is compared with the oracle. Seconds are never compared, only what was measured beside
each other. A disturbance makes most ratios worse, so a way that is over its bound is tried up to five times. The rows
are few, so a ratio is mostly what a batch costs; ``benchmarks.join`` and ``benchmarks.replay`` have many rows.
``python -m benchmarks.guards`` measures, and ``.ci/run --slow`` calls it; ``--set`` sets the bounds.
"""
