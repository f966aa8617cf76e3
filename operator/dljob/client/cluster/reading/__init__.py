"""The documents of a cluster, read: its GPUs, its operator, the past of a job, the record, and sentences."""
