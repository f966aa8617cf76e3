"""The messages between the controller and the SideCar: values only, standard library only."""
