"""DLJob as a custom resource: its definition, its columns, and how its status is read and written."""
