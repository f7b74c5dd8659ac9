"""The command line: ``cojoin demo``, ``cojoin run`` and ``cojoin checkpoints``.

``options`` and ``checkpoint_options`` say what can be typed and ``arguments`` what it means; ``demo``, ``run`` and
``checkpoints`` do it, the last one with ``checkpoint_report`` and ``checkpoint_texts``; ``day`` makes the demo's rows;
``locations`` opens what a person named; ``session`` starts Spark quietly; ``waiting`` waits for a query; ``report``
prints; ``verification`` compares with pandas; ``secrets`` masks.
"""
