"""A fake world with its own clock, in which real traces run through the very same brain as real clusters."""
