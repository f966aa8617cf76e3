"""The places where jobs run, behind one contract."""
