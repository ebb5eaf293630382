"""Avro messages in Confluent's frame, with schemas from a registry."""
