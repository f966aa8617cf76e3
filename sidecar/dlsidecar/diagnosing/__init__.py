"""Whose fault it is: tracebacks, stacks and hangs."""
