"""How fast is Toril's stream queue? Next to streaq, taskiq-redis and bare commands, on one server, in turns.

Run it from the root of the repository: ``python -m benchmarks.stream``. As in ``benchmarks.queue``, every
peer is a program of its own that this one starts, tells what to do, and times: a producer and a worker. The
bare loops are what is left when all that makes a queue is taken away: XADD, XREADGROUP and XACK in batches,
no retry, no reclaim, no order, no limit, and nothing is deleted.
"""
