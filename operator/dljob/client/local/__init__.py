"""The backend of one machine, over the socket of `dljob up`."""
