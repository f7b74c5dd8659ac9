"""The same join on local files and on S3's protocol: ``python -m benchmarks.stores``."""
