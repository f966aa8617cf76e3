"""
Verbs for programs that ask on behalf of a person: agents that speak the Model Context Protocol.
"""
