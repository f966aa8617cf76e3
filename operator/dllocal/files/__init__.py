"""Files that users write or name: looks that do not hang, and the removal of folders of any depth."""
