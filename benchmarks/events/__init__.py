"""Handlers and projections over the event log, beside a bare loop and beside the library eventsourcing."""
