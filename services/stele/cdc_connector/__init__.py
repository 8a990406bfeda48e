"""The connector of change data capture: a Kafka topic for each captured table."""
