"""A platform: one machine. Jobs are the same DLJob files, pods are SideCar processes."""
