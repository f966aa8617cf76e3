"""Events in the life of a job, judged one by one: each function changes the case and says whether its event happened."""
