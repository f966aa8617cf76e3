"""The record of what happened, live: what the loop sees as lines, and the whole of it from the store."""
