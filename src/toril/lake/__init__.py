"""The lake: the event log on Spark. Archived once, in tables for people, and all of history once more."""
