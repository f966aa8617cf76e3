"""Trust in SideCars: their reports are compared with the controller's own knowledge."""
