"""DLJob as a custom resource: its definition, its columns, its status and how they are read and written."""
