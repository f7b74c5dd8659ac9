"""What decides a result: two keyed inputs in, rows in event-time order out. Knows neither Spark nor Java.

The rooms, lowest first; each imports its own modules and those above it in this list:

* ``values``: types, rows, keys and Arrow tables, and the way to bytes and back.
* ``time``: durations, watermarks, strategies, idleness, timers.
* ``state``: keyed state, with its time-to-live, in memory and in segments.
* this folder: ``inputs`` admits rows, ``ordering`` orders them, ``operator`` holds them back until the watermark comes,
  ``keyed_process`` and ``callbacks`` run a user's function (``functions``), ``rescaling`` cuts a state into other key
  groups, ``batch_report`` says what a batch did.
* ``joins``: what the operator does for an as-of, a temporal and an interval join.

A few words are ours. A *key group* is a share of all keys, with an operator of its own, as Flink's. A *segment* is an
immutable file of rows at rest. A *manifest* is the file that makes a batch count. A *drain* is the end of all inputs,
which brings out what still waits. Watermarks travel *in band*: as rows beside the data, so that Spark plans and logs
them alike.
"""
