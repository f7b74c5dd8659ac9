"""The engine: it joins and processes two keyed inputs by event time.

It decides what is in a result. It imports neither Spark nor Java. Rows come in and are emitted as Arrow tables.

A subpackage imports only from itself and from those above it in this list:

* ``values``: types, rows, keys, users' arguments and Arrow tables, and their conversion to bytes and back.
* ``time``: watermarks and their strategies, idleness, timers.
* ``state``: keyed state with its time-to-live, in memory and in segments.
* The modules of this package: inputs, the operator, a function's calls and states, the order of rows, reports.
* ``joins``: the operators of the as-of, the temporal and the interval join.
* ``local``: runs an operator in this process.

Glossary:

* *Key group*: a share of all keys, chosen by the key's hash, with one operator and one state, as in Flink.
* *Total order*: the order of a key's rows by event time, input, source sequence and content, which does not depend on
  the order in which the rows arrived.
* *Buffered row*: a row that an operator keeps in its state until the watermark reaches the row's timestamp.
* *In-band watermark*: a watermark that is computed from control rows, which every map task sends to every key group
  with the data rows, so that a batch that Spark runs again computes the same watermark.
* *State value*: the bytes that Spark's state store keeps for a key group.
* *Memtable*: the rows of a state table that are not flushed to a segment yet, and are in the state value (a term of
  LSM trees).
* *Segment*: an immutable file of rows that were flushed from a memtable, sorted by the hash of their key (an LSM tree's
  SSTable).
* *Manifest*: a small file that is written last in a batch. A batch is committed only if its manifest exists. It is
  cojoin's commit record, next to Spark's commit log; a batch that changes nothing writes none.
* *Drain*: the end of all inputs, at which the watermark advances to the end of time, and all buffered rows and
  event-time timers are processed (Flink: ``stop --drain``).
"""
