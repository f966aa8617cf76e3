"""The web page: GPUs over time with the reason of each change, from a record. See docs/web.md."""
