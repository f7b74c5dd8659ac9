"""What is known of Spark and is not public: its JVM, its logs, its texts, its launcher and its workers.

A new version of Spark can break what is in this folder, and nothing else of cojoin: ``python -m cojoin.session.probes``
shows each private name, what needs it, and whether the installed Spark has it.
"""
