"""The server of `dljob up`: what it answers, to whom, and how it refuses."""
