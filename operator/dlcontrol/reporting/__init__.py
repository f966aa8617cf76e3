"""What people and programs read: reasons, events, metrics, tables and previews."""
