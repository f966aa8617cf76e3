"""What is read: traces, documents, and the shipped speeds."""
