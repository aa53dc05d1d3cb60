"""Who may call which model, with whose key.

tokens         step tokens: step, models, budgets; keys that sign them, reread from the mounted Secret
credentials    the providers' keys, in memory only
"""
