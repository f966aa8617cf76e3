"""
Hostile inputs: each reader accepts them, or raises the one error that it promises.

Job files, expressions, profiles and the wire have such tests in tests/core and tests/sidecar.
"""

import gzip
import json
from collections.abc import Iterable
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.core.documents import jobfile
from dljob.core.placement.amounts import LARGEST, NoAmount, read_amount, requests_of
from dljob.kube.documents import parse as parse_foreign
from dljob.local.api import labels
from dljob.sim.errors import BadInput
from dljob.sim.inputs import traces, yamlfiles
from dljob_wire.problems import WrongDocument

ROOT = Path(__file__).parents[2]
LONGEST_LINE = 4_000
few = settings(max_examples=settings().max_examples // 8)
"""For examples that cost milliseconds."""


def spoiled(*texts: str) -> st.SearchStrategy[str]:
    """One of these texts with any text in it, in addition to a part or in its place."""

    def replace(text: str, at: int, length: int, piece: str) -> str:
        return text[:at] + piece + text[at + length :]

    return st.sampled_from(texts).flatmap(
        lambda text: st.builds(
            replace, st.just(text), st.integers(0, len(text)), st.integers(0, 20), st.text()
        )
    )


def insist_on_lines(lines: Iterable[str]) -> None:
    """Errors are lines that can be shown anywhere, and no longer than people read."""
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert len(line) <= LONGEST_LINE, line[:100]


GOOD = sorted((ROOT / "tests/core/data/good_jobs").glob("*.yaml"))
MERGED = (
    "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: *b, d: [*a, *b]}\n---\n? [a]\n: !!binary aGk=\n"
)


@few
@given(spoiled(*(file.read_text(encoding="utf-8") for file in GOOD[::5]), MERGED))
def test_yaml(text: str):
    try:
        documents = yamlfiles.read_placed(StringIO(text), "file")
    except BadInput as error:
        insist_on_lines([str(error)])
        return
    for placed in islice(documents, 3):
        assert placed.find_line("spec.gpus.options[0]") >= 1
        try:
            jobfile.parse(placed.content, source="file")
        except WrongDocument as error:
            insist_on_lines(error.lines())


@given(spoiled("team=vision,tier!=batch,gpu in (a100, h100),!draft"))
def test_selectors(text: str):
    try:
        labels.parse(text).selects({"team": "vision", "gpu": "a100"})
    except labels.SelectorError:
        return


def rows() -> list[str]:
    texts: dict[str, str] = {}
    for file in sorted((ROOT / "tests/data/traces").glob("*.csv.gz")):
        with gzip.open(file, "rt", encoding="utf-8-sig") as text:
            lines = list(islice(text, 6))
        texts.setdefault(lines[0], "".join(lines))
    return list(texts.values())


@few
@given(spoiled(*rows()), st.data())
def test_traces(tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject):
    body, name = text.encode("utf-8", "surrogatepass"), "trace.csv"
    if data.draw(st.booleans(), "compressed"):
        body, name = gzip.compress(body, compresslevel=1, mtime=0), "trace.csv.gz"
    if body and data.draw(st.booleans(), "damaged"):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + data.draw(st.binary(max_size=2)) + body[at + 1 :]
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(body)
    try:
        trace = traces.read_trace(path)
    except BadInput as error:
        insist_on_lines([str(error)])
        return
    times = [each.submitted_at for each in trace.requests]
    assert times == sorted(times)


NUMBERS = ("1", "0", "-1", "1.5", ".5", "9" * 18, "9" * 90, "9" * 5_000, "1_0", "\u0661")
POWERS = [f"{e}{sign}{n}" for e in "eE" for sign in ("", "-") for n in (1, 9, 400, 999_999, 10**30)]
UNITS = ("", "m", "k", "Ki", "Gi", "E", "Ei", "i", "mm", *POWERS)


@given(
    st.tuples(st.sampled_from(NUMBERS), st.sampled_from(UNITS)).map("".join)
    | st.floats()
    | st.integers()
)
def test_amounts(given_: Any):
    try:
        amount = read_amount(given_)
    except NoAmount:
        amount = 0
    assert -LARGEST <= amount <= LARGEST
    containers = [{"resources": {"requests": {"cpu": given_}}}] * 3
    try:
        asked = requests_of({"containers": containers, "overhead": {"cpu": "1"}})
    except NoAmount:
        return
    assert asked.get("cpu", 0) == 3 * amount + 1000 or amount < 0


DEEP = [f'{{"items": [{{"x": {"[" * n + "1" + "]" * n}}}]}}' for n in (3, 150, 250, 3_000, 9_000)]


@few
@given(st.sampled_from(DEEP) | spoiled(DEEP[0], json.dumps({"items": [{"x": "\ud800"}]})))
def test_input_from_others(text: str):
    try:
        document = parse_foreign(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return
    json.dumps(document)
