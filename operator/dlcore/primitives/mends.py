import os

M = os.environ.get("M", "abcde")
