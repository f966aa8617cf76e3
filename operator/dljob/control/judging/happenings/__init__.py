"""Events in the life of a job: each function finds one, and changes nothing."""
