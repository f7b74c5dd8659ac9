"""The command line: ``cojoin demo``, ``cojoin run``, ``cojoin replay`` and ``cojoin checkpoints``.

``options``, ``kafka_options`` and ``checkpoint_options`` say what can be typed, ``values`` reads single values, and
``arguments`` with ``kafka_arguments`` say what it means; ``demo``, ``run`` and ``checkpoints`` do it, the last one with
``checkpoint_report`` and ``checkpoint_texts``; ``day`` makes the demo's rows; ``locations`` opens what a person named;
``session`` starts Spark quietly; ``waiting`` waits for a query; ``report`` prints; ``verification`` compares with
pandas; ``secrets`` masks.
"""
