"""Computes pass@k and the mean score of each task. No package of the extra `report` is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from statistics import fmean


def task_means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean score of each task that has a scored trial. scores: the scores of the scored trials, by task."""
    return {task: fmean(of_task) for task, of_task in scores.items() if of_task}


def pass_chances(k: int, passed: Mapping[str, Sequence[bool]]) -> dict[str, float]:
    """Return, for each task with at least k trials, an unbiased estimate of the probability that at least one of k trials passes.

    passed: by task, whether each trial passed.
    Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    enough = {task: verdicts for task, verdicts in passed.items() if len(verdicts) >= k}
    return {task: 1 - comb(len(verdicts) - sum(verdicts), k) / comb(len(verdicts), k) for task, verdicts in enough.items()}


def pass_at_ks(most: int) -> list[int]:
    """Return the values of k for pass@k: 1, 2, 4, 8, ... and the maximum."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, most}) if most else []
