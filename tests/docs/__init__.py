"""Parse the pages of README.md and docs/, and run their commands in a shell."""
