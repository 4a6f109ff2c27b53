"""Measurements: each folder is one, run with make bench-NAME."""
