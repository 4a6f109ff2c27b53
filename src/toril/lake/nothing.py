"""A program that does nothing: Spark has fetched what it needs before it is run."""
