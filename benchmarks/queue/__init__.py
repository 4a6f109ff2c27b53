"""How fast is Toril's queue? Next to Node's BullMQ and Python's queues, on one server, in turns.

Run it from the root of the repository: ``python -m benchmarks.queue``. Every peer is a program of its own
(``players/``) that this one starts, tells what to do, and times: a producer and a worker.
"""
