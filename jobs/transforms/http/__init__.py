"""The handler transform: rows go to a service over HTTP, in Spark's tasks, and the rows of its answers go on."""
