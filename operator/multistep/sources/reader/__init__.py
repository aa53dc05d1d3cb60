"""Reads tasks in bounded child processes: nothing that a user wrote is hashed, unpacked or parsed in the operator itself."""
