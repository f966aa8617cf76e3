"""The figures of README and the docs are what their commands print now."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def write_figures(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "write-figures", *options],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(2700)
def test_the_figures_of_the_pages_are_those_of_today():
    checked = write_figures("--check", "--quick")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_so_are_those_that_take_minutes():
    checked = write_figures("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


TYPED = {
    # Statements and assumptions of the papers: no figures of ours.
    *("`default`", "pod initialisation", "ResNet-18 64", "Kubeflow"),
    # By programs of others, or by a second one that is not part of the project.
    "how much work a job is",
    # `dljob reproduce sidecar`, `dragon` and `afs` print these in a form of their own, or take minutes of all cores.
    *("default: job 1 done", "Workload One", "termination, paper", "as assumed"),
    *("elapsed time, DRAGON below Kubeflow", "room for all", "`srtf` / `afs-l`, all traces"),
    "`srtf` / `afs-l`",
    # `benchmarks/rubick_shifts.py --draws 60` takes five minutes.
    "`foresight`",
}
"""The first cells of those tables of docs/reproduction.md that no comment makes; none is added without a reason."""


def test_a_table_of_the_reproductions_is_made_by_a_command_or_listed_here():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    rules = [number for number, line in enumerate(page) if line.startswith("|---")]
    typed = [page[rule + 1].split("|")[1].strip() for rule in rules if page[rule - 2] != "-->"]
    assert len(rules) > len(typed)
    assert sorted(typed) == sorted(TYPED)


@pytest.fixture
def copied(tmp_path):
    """The script in a project of its own, with one page that has nothing to do with ours."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    (tmp_path / "README.md").write_text("", encoding="utf-8")
    script = (ROOT / "scripts" / "write-figures").read_text(encoding="utf-8")
    (tmp_path / "scripts" / "write-figures").write_text(script, encoding="utf-8")
    return tmp_path


def run_copied(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "scripts" / "write-figures", *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_figure_that_is_stale_is_found(copied):
    """In a copy of a page, of which one figure is changed."""
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    (title,) = [line for line in page.splitlines() if line.startswith("jobs: 5 jobs")]
    changed = page.replace(title, "jobs: 6 jobs")
    (copied / "docs" / "simulator.md").write_text(changed, encoding="utf-8")
    checked = run_copied(copied, "--check", "--quick")
    assert checked.returncode == 1
    assert "-jobs: 6 jobs" in checked.stdout
    assert f"+{title}" in checked.stdout
    assert checked.stderr == "The figures are stale; run scripts/write-figures.\n"


TABLE_PAGE = """\
cat > two.csv <<'END'
job_id,submit_time_s,duration_s,num_gpus
0,0,3600,4
1,60,1800,8
END

<!-- table
command: dljob simulate two.csv --gpus 8 --rigid --restart-cost 0 --policy fifo --policy srsf -o json
rows: `{policy}`
columns: {trace}
cells: {shown[makespan_s]} s, {shown[utilization]}
-->
| policy |

Behind it.
"""


def test_a_table_is_made_of_the_fields_that_its_command_prints(copied):
    page = copied / "docs" / "page.md"
    page.write_text(TABLE_PAGE, encoding="utf-8")
    assert run_copied(copied, "--check").returncode == 1
    assert run_copied(copied).returncode == 0
    written = page.read_text(encoding="utf-8")
    table = (
        "| policy | two |\n|---|---|\n| `fifo` | 5,400 s, 0.667 |\n| `srsf` | 5,400 s, 0.667 |\n"
    )
    assert f"-->\n{table}\nBehind it.\n" in written
    assert run_copied(copied, "--check").returncode == 0
    page.write_text(written.replace("5,400", "5,401"), encoding="utf-8")
    stale = run_copied(copied, "--check")
    assert stale.returncode == 1
    assert "+| `fifo` | 5,400 s, 0.667 |" in stale.stdout


def test_what_readme_says_of_adaptive_is_what_its_table_shows():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, below = page.partition("$ dljob compare profiles/peers/pollux_")
    rows = [line.split() for line in below.partition("```")[0].splitlines() if " ± " in line]
    average = {row[0]: float(row[2]) for row in rows if row[0] != "ratios"}
    makespan = {row[0]: float(row[8]) for row in rows if row[0] != "ratios"}
    assert max(average, key=average.__getitem__) == "adaptive"
    assert min(makespan, key=makespan.__getitem__) == "adaptive"
    assert "its makespan is the shortest of the four" in page
    assert "its average completion time the longest" in page


def test_a_table_may_have_the_figures_of_a_benchmark(copied):
    (copied / "benchmarks").mkdir()
    records = [{"policy": "a", "rule": "one", "lost": 1234.5}, {"cores": 2}]
    script = f"import json\nprint(json.dumps({records}))\n"
    (copied / "benchmarks" / "losing.py").write_text(script, encoding="utf-8")
    page = copied / "docs" / "page.md"
    page.write_text(BENCHMARK_PAGE, encoding="utf-8")
    assert run_copied(copied).returncode == 0
    assert "| policy | one |\n|---|---|\n| a | 1,234 |\n" in page.read_text(encoding="utf-8")


def test_a_record_may_have_several_cells(copied):
    page = copied / "docs" / "page.md"
    spec = TABLE_PAGE.replace("columns: {trace}", "columns: makespan | used")
    page.write_text(spec.replace(" s, {", " s | {"), encoding="utf-8")
    assert run_copied(copied).returncode == 0
    table = "| policy | makespan | used |\n|---|---|---|\n| `fifo` | 5,400 s | 0.667 |\n"
    assert table in page.read_text(encoding="utf-8")
    assert run_copied(copied, "--check").returncode == 0


BENCHMARK_PAGE = """\
<!-- table
command: benchmarks/losing.py
rows: {policy}
columns: {rule}
cells: {shown[lost]}
only: policy a
-->
| policy |
"""
