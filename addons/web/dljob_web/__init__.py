"""The web page: GPUs over time with the reason of each change, as one file from a record. See docs/page.md."""
