"""A DLJob and a profile as documents: the one schema as data, and how it is read, checked and written."""
