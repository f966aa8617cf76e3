"""What is shown: tables, frames, pictures, messages and documents."""
