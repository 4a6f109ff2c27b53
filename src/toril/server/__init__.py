"""Toril over HTTP: the collector, metrics, and what later rooms mount into it."""
