"""Dynamic tables: where their values are stored, and the SQL function that looks them up."""
