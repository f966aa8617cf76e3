"""From a profile to throughput, remaining time and restart cost, each with a confidence."""
