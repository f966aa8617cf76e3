"""Parts of a program: signals and logging, coroutines that end together, and one on its own thread."""
