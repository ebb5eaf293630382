"""Dynamic tables: where their values are kept, and the function that asks them inside of Spark's SQL."""
