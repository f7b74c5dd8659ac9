"""Access to file systems without the JVM: stores, small documents, locations, parquet files."""
