"""The SQL of transforms: parsing, translation to Spark's SQL, and checks."""
