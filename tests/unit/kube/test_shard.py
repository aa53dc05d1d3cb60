from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from multistep.kube.shard import LABEL_SHARD, Shard
from multistep.settings import Settings

LABELS: list[dict[str, str]] = [{}, {"other": "a"}, {LABEL_SHARD: "a"}, {LABEL_SHARD: "b"}]
OBJECTS: list[dict[str, Any]] = [{}, *({"labels": each} for each in LABELS)]


def test_each_object_is_of_one_shard() -> None:
    shards = [Shard(), Shard("a"), Shard("b")]
    assert [[shard.has(each) for shard in shards].index(True) for each in OBJECTS] == [0, 0, 0, 1, 2]
    assert all(sum(shard.has(each) for shard in shards) == 1 for each in OBJECTS)


def test_a_shard_selects_by_label_and_lists_its_namespaces() -> None:
    assert (Shard().selector, Shard("a").selector) == ("!multistep.dev/shard", "multistep.dev/shard=a")
    assert Shard("a").selecting("x") == "x,multistep.dev/shard=a"
    assert (Shard().namespaces_to_list, Shard(namespaces=["n", "m"]).namespaces_to_list) == ([None], ["n", "m"])


def test_a_shard_shows_what_it_is() -> None:
    assert str(Shard()) == "trials without a label multistep.dev/shard, in all namespaces"
    assert str(Shard("a", ["n", "m"])) == "trials with the label multistep.dev/shard=a, in n, m"


@pytest.mark.parametrize("name", ["a b", "-a", "a,b", "a=b", "x" * 64])
def test_a_shard_that_can_be_no_labels_value_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="shard"):
        Settings(shard=name)
