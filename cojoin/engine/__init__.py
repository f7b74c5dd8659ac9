"""The engine: it joins and processes two keyed inputs by event time.

It decides what is in a result, and knows neither Spark nor Java. Rows come in and go out as Arrow tables.

A subpackage imports only from itself and from those above it in this list:

* ``values``: types, rows, keys and Arrow tables, and their conversion to bytes and back.
* ``time``: durations, watermarks and their strategies, idleness, timers.
* ``state``: keyed state with its time-to-live, in memory and in segments.
* The modules of this package: ``inputs`` admits rows, and ``ordering`` sorts them. ``operator`` holds them back until
  the watermark passes them, and ``operator_snapshot`` writes and restores what it keeps. ``keyed_process``,
  ``keyed_process_operator`` and ``callbacks`` run a user's function (``functions``, ``side_outputs``), whose states and
  timers ``keyed_state_backend`` keeps. ``key_groups`` labels the key groups, and ``rescaling`` cuts a state into
  another number of them. ``batch_report`` reports on a batch.
* ``joins``: the operators of the as-of, the temporal and the interval join.

Glossary:

* *Key group*: a share of all keys, chosen by the key's hash, with one operator and one state, as in Flink.
* *Total order*: the order of a key's rows by event time, input, source sequence and content, which does not depend on
  the order in which the rows arrived.
* *Held row*: a row that an operator keeps in its state until the watermark passes the row's timestamp.
* *In-band watermark*: a watermark that is computed from control rows, which every map task sends to every key group
  beside the data rows, so that a batch that Spark runs again computes the same watermark.
* *Memtable*: the rows of a state table that are not flushed to a segment yet, and lie in the state value, which is the
  bytes that the state store keeps for a key group (a term of LSM trees).
* *Segment*: an immutable file of rows that were flushed from a memtable, sorted by the hash of their key.
* *Manifest*: a small file that is written last in each batch; a batch counts only if its manifest exists.
* *Drain*: the end of all inputs, at which the watermark goes to the end of time, so all held rows are processed.
"""
