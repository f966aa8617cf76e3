"""The verbs that this add-on brings to the command ``dljob``; ``pyproject.toml`` names them as entry points."""
