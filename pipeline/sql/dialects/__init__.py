"""Translation of other SQL dialects to Spark's."""
