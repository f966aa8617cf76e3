"""
Tests on a machine with a real GPU, by `make test-gpu`; elsewhere they are rehearsed with stand-ins.
"""
