"""Rules between the fields of a document that no single field can express."""
