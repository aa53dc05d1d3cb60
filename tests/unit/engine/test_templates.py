from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.engine.plan.resolve_templates import Unresolved, resolve_templates

VARIABLES = {"SET": "value", "EMPTY": "", "TEMPLATE": "${SET}"}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("${SET}", "value"),
        ("${SET:-default}", "value"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", ""),  # an empty variable counts as set
        ("${UNSET:-default}", "default"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:-b}c}", "a:-b}c"),
        ("${TEMPLATE}", "${SET}"),  # templates in a variable's value are not expanded
        ("", ""),
        ("pre-${SET}", "pre-${SET}"),
        ("${SET}-post", "${SET}-post"),
        ("${SET}${SET}", "${SET}${SET}"),
        ("${SET:+other}", "${SET:+other}"),
        ("$SET", "$SET"),
        ("${}", "${}"),
        ("${SET", "${SET"),
        (" ${SET}", " ${SET}"),
        ("${SET}\n", "${SET}\n"),
    ],
)
def test_a_value_is_a_template_only_as_a_whole(value: str, wanted: str) -> None:
    assert resolve_templates({"KEY": value}, VARIABLES) == {"KEY": wanted}


def test_an_unset_variable_is_named_with_its_place() -> None:
    with pytest.raises(Unresolved, match=r"KEY: variable 'UNSET' is not set.*\$\{UNSET:-default\}") as caught:
        resolve_templates({"KEY": "${UNSET}"}, VARIABLES)
    assert (caught.value.key, caught.value.name) == ("KEY", "UNSET")


@given(st.dictionaries(st.text(max_size=5), st.text(alphabet="$A{}:-x", max_size=12), max_size=4))
def test_whatever_is_no_template_stays_as_it_is(env: dict[str, str]) -> None:
    literal = {key: value for key, value in env.items() if not (value.startswith("${") and value.endswith("}"))}
    assert resolve_templates(literal, {}) == literal
