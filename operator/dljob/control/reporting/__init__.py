"""Output for people and programs: reasons, events, metrics, tables and previews."""
