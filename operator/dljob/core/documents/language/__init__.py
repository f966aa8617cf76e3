"""The language that schemas of documents are written in, and read, checked and written by."""
