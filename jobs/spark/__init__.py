"""The Spark session, its jars and Java, the class-data archive, and Spark's errors."""
