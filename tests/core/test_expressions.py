"""Expressions of users are bounded before they are compiled, and read as Python reads them."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.documents.jobfile import JobFileError, parse
from dljob.core.forms import WrongExpression, find_groups
from dljob_wire.checkpoints import LONGEST_EXPRESSION

SLOW = (
    r"(?i)(?P<iteration>\d+)" + "[!-\U0010ffff]" * 100,
    r"(?P<iteration>\d+)" + "[a\u0100-\uffff]" * 120,
    r"(?P<iteration>\d+)(?:(?:" + "[!-\uffff]{2}" * 80 + ")*)*",
)
PIECES = st.sampled_from(
    [
        *("(", ")", "(?:", "(?P<iteration>", "(?P<b>", "(?P=b)", "(?<=", "(?<!", "(?=", "(?!"),
        *("(?i)", "(?i:", "(?a)", "(?L)", "(?(1)", "(?#", "[", "]", "[^", "-", "a", "b"),
        *("\\d", "\\S", "*", "+", "?", "*?", "*+", "{2,3}", "{,5}", "{9}", "|", ".", "^", "$"),
        *("\\b", "\\1", "\\", "\u0100", "[a-z]", "[0-9.]+", "\\Z", "(?>", "(?x)", "(?P<"),
        *("\\x41", "\\N{DIGIT ONE}", "{", "}"),
    ]
)


def document(log: str) -> dict[str, object]:
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "a"},
        "spec": {"gpus": {"options": [1]}, "training": {"iterations": 1}, "progress": {"log": log}},
    }


@pytest.mark.parametrize("text", SLOW)
def test_slow_expression_is_refused(text: str):
    with pytest.raises(JobFileError) as refused:
        parse(document(text))
    (line,) = refused.value.lines()
    assert line.startswith("spec.progress.log: ")
    assert "takes too long to compile" in line


def test_expression_is_not_compiled_when_read(monkeypatch: pytest.MonkeyPatch):
    compiled: list[object] = []
    monkeypatch.setattr(re, "_compile", lambda pattern, _flags: compiled.append(pattern))
    log = r"only here (?P<iteration>\d+)"
    assert find_groups(log) == {"iteration"}
    assert log not in compiled


@pytest.mark.parametrize("depth", [90, 150, 340])
def test_nesting_of_groups_is_limited(depth: int):
    text = "(" * depth + "(?P<iteration>x)" + ")" * depth
    if depth < 100:
        assert find_groups(text) == {"iteration"}
    else:
        with pytest.raises(WrongExpression, match="levels deep"):
            find_groups(text)


@pytest.mark.parametrize("text", ["a" * (LONGEST_EXPRESSION + 1), "(" * 1_000_000, "[" * 100_000])
def test_long_expression_is_refused(text: str):
    with pytest.raises(
        JobFileError, match=f"has {len(text)} characters, more than {LONGEST_EXPRESSION}"
    ):
        parse(document(text))


@given(st.lists(PIECES, max_size=12).map("".join))
def test_groups_and_errors_match_python(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            groups = frozenset(re.compile(text).groupindex)
        except (re.error, OverflowError) as error:
            with pytest.raises(WrongExpression, match=re.escape(str(error).partition(" at ")[0])):
                find_groups(text)
        else:
            assert find_groups(text) == groups
