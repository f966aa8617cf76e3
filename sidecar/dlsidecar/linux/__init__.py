"""Processes as Linux knows them: the family of a process, its signals, its namespaces and its start."""
