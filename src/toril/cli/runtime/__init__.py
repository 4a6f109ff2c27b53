"""The commands for people who run pipelines."""
