"""Delta's tables without the JVM: one reader of their logs, one writer of their commits."""
