"""The tokens with which steps call models, and the providers' keys.

tokens         step tokens, and the keys that sign them, read from a mounted Secret
credentials    the providers' keys, in memory only
"""
