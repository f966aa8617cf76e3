"""The GPUs of this machine: what the driver says, which are chosen, locks, and foreign processes."""
