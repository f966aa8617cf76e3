"""Published evaluations played again, and the demonstration; no part of the operator."""
