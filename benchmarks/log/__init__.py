"""The event log beside what it stands on and what stands beside it, on the same servers."""
