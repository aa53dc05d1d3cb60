"""How many requests a provider gets at once.

lanes            one queue per credential and model, fair between sweeps and trials
answer_counts    answers and refusals by model, from which the operator adapts the number of active trials
"""
