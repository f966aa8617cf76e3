"""The record of events: the lines of the running loop, and the whole record from the store."""
