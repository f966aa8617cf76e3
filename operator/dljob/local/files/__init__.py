"""Files that users write or name: checks that do not hang, and the removal of folders of any depth."""
