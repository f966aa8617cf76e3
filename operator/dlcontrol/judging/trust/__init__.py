"""Whether a SideCar can be trusted: its reports are compared with what the controller knows by itself."""
