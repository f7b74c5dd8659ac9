"""The command line: ``cojoin demo``, ``init``, ``run``, ``diff`` and ``checkpoints``.

``options`` has the parser, ``option_values`` parses single values, and ``arguments`` checks them together. ``demo``,
``init``, ``run``, ``diff_command`` and ``checkpoints`` execute the commands. ``jobs`` loads the join of a job file, and
``outputs`` makes its sinks. ``day`` makes the demo's rows, ``embedded_spark`` starts Spark, ``waiting`` waits for a
query, ``interrupts`` handles Ctrl-C, and ``verification`` compares with pandas. ``run_report``, ``checkpoint_report``
and ``checkpoint_texts`` format what is printed, and ``command_secrets`` finds what is masked.
"""
