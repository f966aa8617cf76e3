"""The embedded store, one file of SQLite: the default."""
