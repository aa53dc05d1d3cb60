"""Report the failures, flaky tests, history and totals of finished pytest runs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hack import costs, flaky, history
from hack.flaky import MAX_FLAKY, Rerun
from hack.history import History
from hack.lanes import NAME_WIDTH, Ended
from hack.stages import Failure


def report(ended: Sequence[Ended], again: Sequence[Rerun] = (), past: History | None = None) -> None:
    """Print the failures, flaky tests, history and totals of the finished runs.

    Raises Failure if a run failed, unless its only failures are a few flaky tests.
    """
    forgiven = flaky.flaky_tests(again)
    bad = [each for each in ended if each.code and not flaky.is_forgiven(each, forgiven)]
    for each in bad:
        print(f"\n-- {each.run.name}: {each.run.shown}", *each.words, sep="\n")
    print(*flaky.described(again), sep="\n", end="\n" if again else "")
    totals = _totals(ended, forgiven)
    seconds = _seconds(ended)
    run = (past or History()).add(_kinds(ended, forgiven), totals, _by_file(seconds))
    print(*costs.most_costly(ended), *history.table((past or History()).runs()), *_table(ended), sep="\n")
    print(*costs.table(ended), costs.machine(), _line(run.totals), sep="\n", flush=True)
    _judge(bad, forgiven)


def _judge(bad: Sequence[Ended], forgiven: Mapping[str, Rerun]) -> None:
    if bad:
        raise Failure(f"failed: {', '.join(f'{each.run.name} (exit code {each.code})' for each in bad)}")
    if len(forgiven) > MAX_FLAKY:
        raise Failure(f"{len(forgiven)} tests are flaky, at most {MAX_FLAKY} may be: {', '.join(forgiven)}")


def _kinds(ended: Iterable[Ended], forgiven: Mapping[str, Rerun]) -> dict[str, str]:
    return {test: "flaky" if test in forgiven else "failed" for each in ended for test in each.outcomes.failed}


def _totals(ended: Iterable[Ended], forgiven: Mapping[str, Rerun]) -> Counter[str]:
    """Return the totals of all runs. A flaky test counts as flaky, not as failed."""
    totals: Counter[str] = Counter()
    for each in ended:
        totals += each.totals
        totals -= each.outcomes.words_of(forgiven)
    totals["flaky"] += len(forgiven)
    return +totals


def _seconds(ended: Iterable[Ended]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in ended:
        found |= each.outcomes.seconds
    return found


def _by_file(seconds: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for test, number in seconds.items():
        found[test.partition("::")[0]] += number
    return {file: round(number, 1) for file, number in found.items()}


def _table(ended: Iterable[Ended]) -> Iterable[str]:
    for each in ended:
        last = each.words[-1].strip("= ") if each.totals else f"exit code {each.code}"
        yield f"    {each.run.name:<{NAME_WIDTH}}  {last}"


def _line(totals: Mapping[str, int]) -> str:
    return f"==== {', '.join(f'{number} {what}' for what, number in sorted(totals.items()))} ===="
