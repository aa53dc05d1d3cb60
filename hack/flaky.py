"""A cluster test that failed is run once more, alone: one that passes then is FLAKY, and only a few may be."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hack.lanes import Ended, Run

MOST_FLAKY = 3  # more fail the run
MOST_AGAIN = 10  # with more failures something is broken that all of them need: the rest is not run again


@dataclass(frozen=True)
class Again:
    """The second run of a test. first: its output when it failed, in the run of that name."""

    test: str
    name: str
    first: str
    second: Ended

    @property
    def is_flaky(self) -> bool:
        return self.second.code == 0


def run_again(ended: Iterable[Ended], env: Mapping[str, str], execute: Callable[[Run], Ended]) -> list[Again]:
    """Run each test that failed once more, one after another; nothing else may run on the cluster meanwhile."""
    failed = [(each.run.name, test, output) for each in ended for test, output in each.outcomes.failed.items()]
    return [
        Again(test, name, output, execute(Run("again", [test, "-v", "-rP"], env)))  # -rP: what it printed though it passed
        for name, test, output in failed[:MOST_AGAIN]
    ]


def flaky_tests(again: Iterable[Again]) -> dict[str, Again]:
    """Those that passed the second time, by test."""
    return {each.test: each for each in again if each.is_flaky}


def is_forgiven(ended: Ended, flaky: Mapping[str, Again]) -> bool:
    """Whether a run of pytest failed for nothing but tests that are flaky."""
    failed = ended.outcomes.failed
    return ended.code == 1 and ended.outcomes.is_decided_by_tests and bool(failed) and failed.keys() <= flaky.keys()


def described(again: Sequence[Again]) -> Iterator[str]:
    """Both outputs of each test that was run again."""
    for each in again:
        word = "FLAKY" if each.is_flaky else "FAILED TWICE"
        yield f"\n{word} {each.test}: failed in the run '{each.name}'" + (", then passed alone" if each.is_flaky else ", and alone")
        yield from ("---- first output", each.first, "---- second output, alone", *each.second.words)
