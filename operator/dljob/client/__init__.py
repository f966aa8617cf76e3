"""THE CLIENT: the places where jobs run, and operations on jobs, for the command and the Python interface."""
