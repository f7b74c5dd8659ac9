"""The Kafka sink: outputs of queries as topics, exactly once for consumers that read committed records."""
