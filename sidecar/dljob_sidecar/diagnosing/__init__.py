"""The causes of failures: tracebacks, stacks and hangs."""
