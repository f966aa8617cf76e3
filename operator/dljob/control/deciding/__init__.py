"""Makes snapshots for the scheduler, statuses from its plans, and forecasts of starts."""
