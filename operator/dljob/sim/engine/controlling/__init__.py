"""The simulated controller: when it may decide, how GPUs change hands, and the cost."""
