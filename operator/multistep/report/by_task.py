"""Each task's mean score and chance to pass, without the intervals of statistics.py, which need the pip extra `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from statistics import fmean

FEWEST = 6  # minimum number of tasks for a significant difference


def means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean score of each task that has a scored trial. scores: the scores of the scored trials, by task."""
    return {task: fmean(found) for task, found in scores.items() if found}


def chances(k: int, passed: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    """Return, for each task with at least k trials, an unbiased estimate of the probability that at least one of k trials passes.

    passed: by task, whether each trial passed.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    enough = {task: found for task, found in passed.items() if len(found) >= k}
    return {task: 1 - comb(len(found) - sum(found), k) / comb(len(found), k) for task, found in enough.items()}


def ks(most: int) -> list[int]:
    """Return the values of k for pass@k: 1, 2, 4, 8, ... and the maximum."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, most}) if most else []
