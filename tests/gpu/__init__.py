"""What a machine with a real GPU can show, by `make test-gpu`; elsewhere it is rehearsed with stand-ins."""
