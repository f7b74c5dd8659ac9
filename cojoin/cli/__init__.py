"""The command line: ``cojoin demo``, ``init``, ``run``, ``diff`` and ``checkpoints``.

``options`` parses and checks the words of a command, and finds its secrets. ``demo``, ``run`` (with ``diff``)
and ``checkpoints`` execute the commands. ``jobs`` writes and loads job files, and makes their outputs.
``embedded_spark`` starts Spark, ``interrupts`` handles Ctrl-C, and ``run_report`` formats the report of a run.
"""
