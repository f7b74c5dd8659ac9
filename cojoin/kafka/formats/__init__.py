"""The formats of records' values and keys: Avro, Protobuf and JSON by a schema registry, and Debezium's envelope."""
