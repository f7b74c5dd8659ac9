"""The command line: ``cojoin demo``, ``cojoin run``, ``cojoin replay`` and ``cojoin checkpoints``.

``options``, ``kafka_options`` and ``checkpoint_options`` have the parsers; ``typed_values`` and ``typed_locations``
parse single values; ``arguments`` and ``kafka_arguments`` check values together. ``demo``, ``run`` and ``checkpoints``
execute the commands. ``day`` makes the demo's rows, ``embedded_spark`` starts Spark, ``waiting`` waits for a query,
``interrupts`` handles Ctrl-C, and ``verification`` compares with pandas. ``run_report``, ``checkpoint_report`` and
``checkpoint_texts`` format what is printed, ``hints`` rewords messages, and ``command_secrets`` finds what is masked.
"""
