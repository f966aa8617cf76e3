"""The words that the controller and the SideCar both speak: values only, standard library only."""
