"""The brain of DLJob: values in, values out. No clock, no I/O, no logging, no randomness of its own."""
