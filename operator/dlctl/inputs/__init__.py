"""What is typed: arguments, units, job files, selections and changes."""
