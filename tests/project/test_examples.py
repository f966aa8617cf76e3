"""Hypothesis draws the same examples in every process, so that a failure is never a matter of luck."""

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MODULE = "NUMBERS = (123_457, 765_431, 0.123_457)"


def draw() -> list[tuple[int, float]]:
    drawn: list[tuple[int, float]] = []

    @settings(max_examples=60)
    @given(st.integers(0, 1_000_000), st.floats(0.0, 1.0))
    def note(count: int, share: float) -> None:
        drawn.append((count, share))

    note()
    return drawn


@pytest.mark.skipif(not settings().derandomize, reason="other examples are looked for")
def test_a_module_that_is_loaded_changes_no_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draw()
    (tmp_path / "loaded_for_its_numbers.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_for_its_numbers")
    assert draw() == before
