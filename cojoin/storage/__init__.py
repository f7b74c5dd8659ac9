"""Access to file systems and to the JVM: small files, paths, commits to the Delta log."""
