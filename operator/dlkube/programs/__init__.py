"""How a program of ours runs: its signals and log, coroutines that end together, and one on a thread of its own."""
