"""The connections to SideCars: who they are, what was heard of each, and what each is to do."""
