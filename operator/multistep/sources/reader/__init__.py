"""Reads tasks in bounded child processes: the operator itself never hashes, unpacks or parses user input."""
