"""What guards the speed of each way through cojoin: its time over that of plain Spark, beside a bound, on every push.

``joins`` has the ways through files, ``replay`` the one through Kafka. A way and its floor run in one session, one
after the other, and the result is compared with the oracle. Seconds are never compared, only what was measured beside
each other. A disturbance can only make one worse, so a way that is over its bound is tried once more. The rows are few,
so a ratio is mostly what a batch costs; how it is with many rows tell ``benchmarks.join`` and ``benchmarks.replay``.
``python -m benchmarks.guards`` measures and sets the bounds.
"""
