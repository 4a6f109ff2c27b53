"""The waiting room over HTTP: its API, its page, its metrics."""
