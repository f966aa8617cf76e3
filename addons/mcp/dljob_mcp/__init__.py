"""``dljob mcp``: agents ask DLJob, and where the user allows it change jobs, by the Model Context Protocol. See docs/agents.md."""
