"""The figures of README and the docs are what their commands print now."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import loaded

ROOT = Path(__file__).parents[2]


def check_figures(*options: str, limit_s: float) -> None:
    words = [sys.executable, str(ROOT / "scripts" / "write-figures"), "--check", *options]
    checked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.processes
@pytest.mark.story
def test_the_figures_of_the_pages_are_those_of_today():
    check_figures("--quick", limit_s=600.0)


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_so_are_those_that_take_minutes():
    check_figures(limit_s=10_000.0)


@pytest.mark.long
@pytest.mark.timeout(20_000)
def test_so_are_those_that_take_an_hour():
    check_figures("--long", limit_s=19_000.0)


TYPED = {
    # Statements and assumptions of the papers, and the claims with our figures of the pages: no new figures.
    *(
        "`default`",
        "Kubeflow",
        "[Tiresias](reproduction/tiresias.md)",
        "in-process expansion",
    ),
    *("job handler, marginal utility (4.1 to 4.3)", "gangs never deadlock"),
    "four mini-epochs of 20 to 40 s, with one and two workers and one and two servers",
    # `dljob reproduce gang --traces` prints these from files without a licence, which are not shipped.
    *("first epoch, 88 jobs", "default"),
    # `benchmarks/coach.py` measures them on a machine.
    "all pods (8 + 8 + 8)",
    # By programs of others, or by a second one that is not part of the project.
    "how much work a job is",
    # Measured on machines that are named there, whose figures no other machine prints.
    "SideCar: reshape down, reshape up",
    # `dljob reproduce gang` prints these in a form of its own.
    "room for all",
}
"""The first cells of those tables of the reproductions that no comment makes; none is added without a reason."""


def test_a_table_of_the_reproductions_is_made_by_a_command_or_listed_here():
    docs = ROOT / "docs"
    paths = [docs / "reproduction.md", *sorted((docs / "reproduction").glob("*.md"))]
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("|---")]
    typed = [lines[rule + 1].split("|")[1].strip() for rule in rules if lines[rule - 2] != "-->"]
    assert len(rules) > len(typed)
    assert sorted(typed) == sorted(TYPED)


class Script:
    """The script before one page of its own, and commands that print what they are said to."""

    def __init__(self, module, page, monkeypatch):
        self._module, self.page = module, page
        self._patch = monkeypatch.setattr
        self._patch(module, "ROOT", page.parent)
        self._patch(module, "PAGES", [page])

    def prints(self, text):
        self._patch(self._module, "ANSWERS", {})
        self._patch(self._module, "run", lambda command, folder: text)

    def __call__(self, *options):
        self._patch(sys, "argv", ["write-figures", *options])
        return self._module.main()


@pytest.fixture
def script(tmp_path, monkeypatch):
    with loaded("write-figures") as module:
        yield Script(module, tmp_path / "page.md", monkeypatch)


def test_a_figure_that_is_stale_is_found(script, capsys):
    page = "<!-- figures -->\n```console\n$ dljob simulate x.csv\njobs: 6 jobs\n```\n"
    script.page.write_text(page, encoding="utf-8")
    script.prints("jobs: 5 jobs\n")
    assert script("--check", "--quick") == 1
    told = capsys.readouterr()
    assert "-jobs: 6 jobs\n+jobs: 5 jobs\n" in told.out
    assert told.err == "The figures are stale; run scripts/write-figures.\n"


TABLE = """\
<!-- table
command: benchmarks/losing.py
rows: `{policy}`
columns: {trace}
cells: {shown[makespan_s]} s, {shown[utilization]}
only: seed 0
-->
| policy |

Behind it.
"""
RECORDS = [
    {"policy": policy, "trace": "two", "makespan_s": 5400.3, "utilization": 2 / 3, "seed": seed}
    for policy in ("fifo", "srsf")
    for seed in (0, 1)
]


def test_a_table_is_made_of_the_fields_that_its_command_prints(script, capsys):
    script.prints(json.dumps(RECORDS))
    script.page.write_text(TABLE, encoding="utf-8")
    assert script("--check") == 1
    assert script() == 0
    written = script.page.read_text(encoding="utf-8")
    table = (
        "| policy | two |\n|---|---|\n| `fifo` | 5,400 s, 0.667 |\n| `srsf` | 5,400 s, 0.667 |\n"
    )
    assert f"-->\n{table}\nBehind it.\n" in written
    assert script("--check") == 0
    script.page.write_text(written.replace("5,400", "5,401"), encoding="utf-8")
    capsys.readouterr()
    assert script("--check") == 1
    assert "+| `fifo` | 5,400 s, 0.667 |" in capsys.readouterr().out


def test_a_record_may_have_several_cells(script):
    spec = TABLE.replace("columns: {trace}", "columns: makespan | used").replace(" s, {", " s | {")
    script.prints(json.dumps(RECORDS))
    script.page.write_text(spec, encoding="utf-8")
    assert script() == 0
    table = "| policy | makespan | used |\n|---|---|---|\n| `fifo` | 5,400 s | 0.667 |\n"
    assert table in script.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("pace", "options"), [("slow", ["--quick"]), ("long", [])])
def test_a_table_of_a_slower_command_is_left_alone(script, pace, options):
    script.prints(json.dumps(RECORDS))
    script.page.write_text(TABLE.replace("<!-- table", f"<!-- table: {pace}"), encoding="utf-8")
    assert script("--check", *options) == 0
    assert script("--check", "--long") == 1
