"""The input of simulations: traces, documents, and the shipped speeds."""
