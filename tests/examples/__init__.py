"""The job files of ``examples/`` on real nodes, as they are."""
