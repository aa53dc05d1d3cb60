"""Request bodies are valid JSON and valid YAML, and both parsers return the same strings."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from multistep.kube.requests import encode


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_is_the_same_when_read_back_as_json(text: str) -> None:
    assert json.loads(encode({"a": text, text: 1}))["a"] == text


@pytest.mark.parametrize("text", ["party 🎉", "\x7f\x85\x9f", "\ufffe\uffff", "back\\slash \\ud83d", "tab\tand\nnewline", "ü漢"])
def test_texts_are_the_same_when_read_back_as_yaml(text: str) -> None:
    assert yaml.safe_load(encode({"a": text}))["a"] == text


def test_half_a_surrogate_pair_which_yaml_cannot_encode_is_replaced() -> None:
    assert json.loads(encode({"a": "x\ud800"})) == {"a": "x\ufffd"}
