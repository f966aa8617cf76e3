"""Simple rules, most of them what clusters do today, that other policies are measured against."""
