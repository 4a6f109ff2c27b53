"""Domains that come with Toril, built on the event-sourcing runtime."""
