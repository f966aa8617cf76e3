"""The connections to SideCars: their addresses, last reports and commands."""
