"""Input from the command line: arguments, units, job files, selections and changes."""
