"""Small parts that many modules need: a back-off, and news that is reported once until it changes."""
