"""The engine: it joins and processes two keyed inputs by event time.

It decides what is in a result. It imports neither Spark nor Java. Rows come in and go out as Arrow tables.

A subpackage imports only from itself and from those above it in this list:

* ``values``: types, rows, keys, users' arguments and Arrow tables, and their conversion to bytes and back.
* ``time``: watermarks and their strategies, idleness, timers.
* ``state``: keyed state with its time-to-live, in memory and in segments.
* The modules of this package:

  * ``input``: the declaration of an input; ``input_spec``: an input as the engine sees it, and which rows it admits.
  * ``row_changes``: rows that delete, as versions and deletes.
  * ``ordering``: the total order of rows.
  * ``key_groups``: the key group of a row, and its label.
  * ``operator``: buffers rows until the watermark reaches them; its snapshot.
  * ``functions``: the contract of a user's function and its side outputs; ``callbacks``: its calls.
  * ``keyed_process``: the operator that runs a function, and its configuration.
  * ``keyed_state_backend``: the states and timers of a function.
  * ``plan``: an operation, its inputs and their settings.
  * ``rescaling``: cuts a state into another number of key groups.
  * ``batch_report``: the counters of an input, and the report on a batch.
  * ``lateness``: how far rows are behind those that arrived before them.
  * ``display``: values, rows, tables and objects as texts and HTML.

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
