"""What touches a file system or the JVM: small files, paths, commits to Delta's log."""
