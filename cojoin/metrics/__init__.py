"""A query's figures as metrics of OpenTelemetry."""
