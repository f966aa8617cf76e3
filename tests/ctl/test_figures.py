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


def test_the_figures_of_the_pages_are_those_of_today():
    checked = write_figures("--check", "--quick")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_so_are_those_that_take_minutes():
    checked = write_figures("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_figure_that_is_stale_is_found(tmp_path):
    """In a copy of the pages, of which one figure is changed."""
    folder = tmp_path / "copy"
    (folder / "docs").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "profiles").symlink_to(ROOT / "profiles")
    script = (ROOT / "scripts" / "write-figures").read_text(encoding="utf-8")
    (folder / "scripts" / "write-figures").write_text(script, encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(readme, encoding="utf-8")
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    (title,) = [line for line in page.splitlines() if line.startswith("jobs: 5 jobs")]
    changed = page.replace(title, "jobs: 6 jobs")
    (folder / "docs" / "simulator.md").write_text(changed, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, folder / "scripts" / "write-figures", "--check", "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    assert "-jobs: 6 jobs" in checked.stdout
    assert f"+{title}" in checked.stdout
    assert checked.stderr == "The figures are stale; run scripts/write-figures.\n"


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
