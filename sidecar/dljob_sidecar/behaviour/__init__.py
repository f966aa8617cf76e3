"""The SideCar's behaviour as values: states, events and transitions."""
