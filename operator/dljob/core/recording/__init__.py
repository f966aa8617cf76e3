"""The record of events: its lines, how a file of them is read and written, and the sums over them."""
