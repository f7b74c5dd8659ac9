"""The parts of Spark that are not public and that cojoin uses: its JVM, logs, texts, launcher and workers.

A new version of Spark can break what is in this folder, and nothing else of cojoin: ``python -m cojoin.session.probes``
shows each private name, what needs it, and whether the installed Spark has it.
"""
