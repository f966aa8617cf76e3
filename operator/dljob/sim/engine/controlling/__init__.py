"""The simulated controller: when it may decide, how its plans are carried out, how GPUs change hands, and the cost."""
