"""Between the situation and the scheduler: snapshots for it, statuses from its plans, expected starts."""
