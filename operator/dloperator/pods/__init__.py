"""The pods of jobs: what ails them, who is missing, who is left over, and what is tried about it."""
