"""What happened, as one record: its lines, how a file of them is read and written, and what follows from them."""
