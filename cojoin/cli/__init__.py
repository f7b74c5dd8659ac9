"""The command line: ``cojoin demo`` and ``cojoin run``.

``options`` says what can be typed and ``arguments`` what it means; ``demo`` and ``run`` do it; ``day`` makes the demo's
rows; ``locations`` opens what a person named; ``session`` starts Spark quietly; ``waiting`` waits for a query;
``report`` prints; ``verification`` compares with pandas; ``secrets`` masks.
"""
