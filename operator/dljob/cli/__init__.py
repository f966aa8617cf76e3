"""The `dljob` command, also installed as `kubectl-dljob`: one program for every platform."""
