"""Delta's tables by Delta's own classes in the JVM, for the sessions that have one."""
