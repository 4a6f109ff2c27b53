"""Spans from HTTP to summaries: a collector and a worker, beside a receiver that only decodes and appends."""
