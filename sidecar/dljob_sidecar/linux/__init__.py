"""Linux processes: their families, signals, namespaces and starts."""
