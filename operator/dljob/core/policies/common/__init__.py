"""Code that several policies share; none of it is a policy."""
