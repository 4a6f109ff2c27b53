"""Moving queues from untagged names to tagged ones, without losing a job."""
