"""The simulated world: its clock, its jobs and nodes, and how GPUs change hands in it."""
