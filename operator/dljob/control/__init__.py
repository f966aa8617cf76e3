"""The control loop for any platform, and the parts that it uses."""
