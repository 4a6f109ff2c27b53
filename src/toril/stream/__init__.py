"""A job queue on Redis Streams: leases, retries, dead letters, order per key."""
