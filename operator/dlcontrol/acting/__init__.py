"""What is done about a decision: recorded first, then commands to SideCars and requests for pods."""
