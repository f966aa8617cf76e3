"""The SideCar's server: connections, identities, routes and metrics."""
