"""Parse README.md and the pages of docs/, and run their commands in a shell."""
