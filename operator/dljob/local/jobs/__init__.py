"""The list of jobs of one machine: its file, its journal, and what a damaged one is restored from."""
