"""The SideCar's behaviour as values: states, events and what follows from them."""
