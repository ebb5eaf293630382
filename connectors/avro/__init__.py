"""Avro schemas, and Spark columns of Avro values."""
