"""Spans in, trace summaries out."""
