"""Small parts that many modules need: a back-off, a rate limit, and news reported once."""
