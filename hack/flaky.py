"""Repeat failed cluster tests once, alone. A test that then passes is flaky. More than MAX_FLAKY flaky tests fail the run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hack.lanes import Ended, Run

MAX_FLAKY = 3  # maximum number of flaky tests of a successful run
MAX_RERUNS = 10  # maximum number of failed tests to repeat, because more failures probably have a common cause


@dataclass(frozen=True)
class Rerun:
    """The repetition of a failed test. The test failed in the pytest run ``name`` with the output ``first``."""

    test: str
    name: str
    first: str
    second: Ended

    @property
    def is_flaky(self) -> bool:
        return self.second.code == 0


def run_again(ended: Iterable[Ended], env: Mapping[str, str], execute: Callable[[Run], Ended]) -> list[Rerun]:
    """Repeat each failed test once, one after the other. Meanwhile, the caller must run no other tests on the cluster."""
    failed = [(each.run.name, test, output) for each in ended for test, output in each.outcomes.failed.items()]
    return [
        Rerun(test, name, output, execute(Run("again", [test, "-v", "-rP"], env)))  # -rP also shows the output of a passed test
        for name, test, output in failed[:MAX_RERUNS]
    ]


def flaky_tests(again: Iterable[Rerun]) -> dict[str, Rerun]:
    """Return the repeated tests that passed, by test id."""
    return {each.test: each for each in again if each.is_flaky}


def is_forgiven(ended: Ended, flaky: Mapping[str, Rerun]) -> bool:
    """Return whether flaky tests are the only failures of a pytest run."""
    failed = ended.outcomes.failed
    return ended.code == 1 and ended.outcomes.is_decided_by_tests and bool(failed) and failed.keys() <= flaky.keys()


def described(again: Sequence[Rerun]) -> Iterator[str]:
    """Yield lines with the first and the second output of each repeated test."""
    for each in again:
        word = "FLAKY" if each.is_flaky else "FAILED TWICE"
        yield f"\n{word} {each.test}: failed in the run '{each.name}'" + (", then passed alone" if each.is_flaky else ", and alone")
        yield from ("---- first output", each.first, "---- second output, alone", *each.second.words)
