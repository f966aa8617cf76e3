"""Output: tables, frames, pictures, messages and documents."""
