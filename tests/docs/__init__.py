"""The documents: what is in them, and their commands run for real."""
