"""A policy from a user's file is played like any other, and its mistakes are found."""

import re
from pathlib import Path

import pytest

from dljob.core.model import JobId
from dljob.sim import policies
from dljob.sim.errors import BadInput
from dljob_lab.comparing import tasks
from tests.builders import make_cluster, make_snapshot, make_state, make_view

OWN = '''\
"""Shortest name first: an example, not a recommendation."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.options import declare


@dataclass(frozen=True)
class ShortestName:
    """The jobs with the shortest names run, each with the least it can run on."""

    name: ClassVar[str] = "shortest-name"
    paper: ClassVar[str] = "none"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    most: int = declare(1, at_least=1, at_most=64)

    def allocate(self, view: View) -> Decision:
        return Decision({state.job.id: Share(self.most) for state in view.pending})
'''
VIEW = make_view(make_snapshot(make_cluster(n1=4), make_state("a"), now=60.0))


@pytest.fixture
def write(tmp_path):
    def write(text: str, *changes: tuple[str, str]) -> str:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "own.py").write_text(text, encoding="utf-8")
        return str(tmp_path / "own.py")

    return write


def test_policy_from_file_takes_options(write):
    path = write(OWN)
    shares = policies.read(f"{path}:ShortestName:most=3").allocate(VIEW).shares
    assert [(job, share.gpus) for job, share in shares.items()] == [("a", 3)]


def test_single_policy_of_a_file_needs_no_name(write):
    path = write(OWN)
    assert policies.read(path).name == "shortest-name"
    assert policies.read(f"{path}:most=2").allocate(VIEW).shares[JobId("a")].gpus == 2


def test_changed_file_is_reloaded(write):
    assert policies.read(write(OWN)).paper == "none"
    changed = write(OWN, ('paper: ClassVar[str] = "none"', 'paper: ClassVar[str] = "OSDI"'))
    assert policies.read(changed).paper == "OSDI"


def test_neighbouring_module_is_imported(write, tmp_path):
    (tmp_path / "beside_own.py").write_text("MOST = 2\n", encoding="utf-8")
    path = write(
        OWN,
        ("import ClassVar\n", "import ClassVar\n\nfrom beside_own import MOST\n"),
        ("self.most", "MOST"),
    )
    assert policies.read(path).allocate(VIEW).shares[JobId("a")].gpus == 2


WRONG = {
    "a class that is not there": (
        (),
        ":Nope",
        "has no class 'Nope'; its policies are ShortestName",
    ),
    "no Python": ((("def allocate", "deff allocate"),), "", "own.py:22: is not Python"),
    "an import that fails": (
        (("from typing", "import nothing_there\nfrom typing"),),
        "",
        "own.py:4: raises ModuleNotFoundError: No module named 'nothing_there' when it is loaded",
    ),
    "not frozen": (
        (("(frozen=True)", ""),),
        "",
        "own.py:11: ShortestName is not a frozen dataclass",
    ),
    "attributes that are missing": (
        (("    paper: ClassVar[str]", "    ppr: ClassVar[str]"), ("    needs: ", "    nds: ")),
        "",
        'does not say everything about itself; add paper: ClassVar[str] = "none"; needs: ',
    ),
    "an option without a range": (
        (("declare(1, at_least=1, at_most=64)", "1"),),
        "",
        "has an option of which nothing says what it may be",
    ),
    "an option out of range": (
        (),
        ":ShortestName:most=99",
        "ShortestName: most cannot be '99'; write a whole number from 1 to 64",
    ),
    "no policy at all": ((("def allocate", "def decide"),), "", "names no class; it has no policy"),
}


@pytest.mark.parametrize(("changes", "behind", "message"), WRONG.values(), ids=WRONG)
def test_wrong_file_is_refused_with_a_remedy(write, changes, behind, message):
    path = write(OWN, *changes)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is asserted below
        policies.read(path + behind)
    assert message in str(error.value)


ANSWERS = {
    "no decision": (
        "return Decision(",
        "return dict(",
        "own.py:22: policy 'shortest-name' returns a dict at t=60 s",
    ),
    "nothing": ("return Decision(", "Decision(", "returns None at t=60 s"),
    "no share": ("Share(self.most)", "2", "gives job a an int at t=60 s; give each job a Share"),
    "an error": (
        "Share(self.most)",
        "Share(1 // 0)",
        "own.py:23: policy 'shortest-name' raises ZeroDivisionError",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), ANSWERS.values(), ids=ANSWERS)
def test_wrong_answer_has_line_and_time(write, old, new, message):
    policy = policies.read(write(OWN, (old, new)))
    with pytest.raises(BadInput) as error:
        policy.allocate(VIEW)
    assert message in str(error.value)


def test_digest_covers_imported_modules(write, tmp_path):
    (tmp_path / "imported_beside.py").write_text("MOST = 2\n", encoding="utf-8")
    text = OWN.replace("import ClassVar\n", "import ClassVar\n\nfrom imported_beside import MOST\n")
    path = tmp_path / "own.py"
    write(text)
    policies.read(str(path))
    first = tasks.digest_own(path)
    assert tasks.digest_own(path) == first
    (tmp_path / "imported_beside.py").write_text("MOST = 3\n", encoding="utf-8")
    second = tasks.digest_own(path)
    write(text.replace("ordering", ""), ("most: int", "least: int"))
    assert len({first, second, tasks.digest_own(path)}) == 3


def test_policy_from_the_docs_is_played(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    decision = policies.read(f"{tmp_path}/mine.py:LeastService:every=300").allocate(VIEW)
    assert decision.shares[JobId("a")].gpus == 1
    assert decision.wake_at == 360.0
