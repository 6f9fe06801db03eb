"""Rows of a trace as columns: Arrow, Parquet and SQL. Needs the extra ``analyze``."""
