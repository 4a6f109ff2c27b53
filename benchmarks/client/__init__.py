"""Which Redis client should Toril stand on? Ours and three others, side by side, on the same servers.

Run it from the root of the repository: ``python -m benchmarks.client``. The decision that rests on it
is in ``docs/adr/0001-redis-client.md``.
"""
