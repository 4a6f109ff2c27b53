"""Moving a large queue to a tagged name: rate, memory, and what others notice of it."""
