"""
The parts of the tests: the commands of each, and their limits.

A part is rounds, one after the other; a round is at most two lanes, which run at the same time on the two cores of a
machine; a lane is steps, one after the other.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = ".venv/bin/python"
REAL = ("processes", "cluster", "nodes")
OTHERS = ("frameworks", "long")
"""Tests with these marks run only in the part of that name."""
MINUTE = 60.0


@dataclass(frozen=True)
class Step:
    """One command, and its limit in seconds."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    status: int = 1
    """The exit status of the runner when the step fails."""
    root: bool = False
    """Only root can run it; it is left out for other users, which the runner says."""
    building: bool = False
    """It makes what later steps need, and its time does not count as time of the part."""


Lane = tuple[Step, ...]


@dataclass(frozen=True)
class Part:
    """A target of the Makefile."""

    name: str
    purpose: str
    rounds: tuple[tuple[Lane, ...], ...]
    limit_s: float
    """For all its steps but those that build."""


def _marked(*wanted: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    return "-m", " and ".join([*wanted, *(f"not {mark}" for mark in without)])


def _pytest(name: str, *words: str, workers: int, minutes: float = 20, root: bool = False) -> Step:
    shared = ("--dist", "worksteal", "--max-worker-restart", "3") if workers else ()
    command = (PYTHON, "-m", "pytest", "-q", "-n", str(workers), *shared, *words)
    return Step(name, command, minutes * MINUTE, root=root)


SETUP = Step("setup", ("make", "setup"), 30 * MINUTE, status=4, building=True)
SERVERS = Step(
    "servers",
    ("nice", PYTHON, "-m", "tests.servers.preparing"),
    75 * MINUTE,
    status=4,
    building=True,
)
LINT = tuple(
    Step(name, command, 7 * MINUTE, status=3)
    for name, command in (
        ("format", (".venv/bin/ruff", "format", "--check", "--quiet", ".")),
        ("style", (".venv/bin/ruff", "check", "--quiet", "--output-format=concise", ".")),
        ("types", (".venv/bin/mypy",)),
        # By their modules: the files of an add-on are named from its folder on, and these from the root on.
        (
            "addons-types",
            (
                ".venv/bin/mypy",
                *(["-p", "addons.gangs.tests", "-p", "addons.lab.tests"]),
                *(["-p", "addons.mcp.tests", "-p", "addons.web.tests"]),
            ),
        ),
        ("arrows", (".venv/bin/lint-imports", "--no-logo")),
        ("house", (PYTHON, "scripts/measure-house", "--check")),
    )
)
SITE_SETUP = Step("site-setup", ("make", ".docs/.installed"), 15 * MINUTE, status=4, building=True)
SITE = Step("site", ("make", "docs"), 10 * MINUTE, status=3)
PURE = _marked(without=("slow", *REAL, *OTHERS))


# The brain's own tests, which hold the floor under its branches.
FLOOR = ("--cov", "--cov-report=", "--min-branches=95")
BRAIN = ("tests/core", "addons/lab/tests/policies")
CORE = _pytest("core", *BRAIN, *PURE, *FLOOR, workers=2)
OTHER_PURE = _pytest("pure", *(f"--ignore={each}" for each in BRAIN), *PURE, workers=2)
ALL_PURE = _pytest("pure", *PURE, workers=2)
SLOW = _pytest("slow", *_marked("slow", without=(*REAL, *OTHERS)), workers=2, minutes=60)
STORIES = (
    _pytest("control-plane", *_marked("story", "cluster", without=("nodes", *OTHERS)), workers=1),
    _pytest(
        "processes",
        *_marked("story", "processes", without=("cluster", "nodes", *OTHERS)),
        workers=1,
    ),
    _pytest("nodes", *_marked("story", "nodes", without=OTHERS), workers=1, root=True),
)


def _alone(name: str, purpose: str, *steps: Step, servers: bool = False) -> Part:
    """A part of ``make deep``: its steps one after the other, and nothing else at the same time."""
    built = ((SETUP,), *(((SERVERS,),) if servers else ()))
    rounds = (*((lane,) for lane in built), (steps,))
    return Part(name, purpose, rounds, sum(step.limit_s for step in steps))


def _command(name: str, *words: str, minutes: float, root: bool = False) -> Step:
    return Step(name, (PYTHON, *words), minutes * MINUTE, root=root)


GATE = Part(
    "test",
    "the gate: lint, the site, all pure tests, and one real run of every behaviour",
    (
        ((SETUP, SITE_SETUP),),
        ((SERVERS,), (*LINT, SITE, CORE, OTHER_PURE)),
        ((STORIES[0],), STORIES[1:]),
    ),
    30 * MINUTE,
)
CHECK = Part(
    "check",
    "lint and the pure tests, before each commit",
    (((SETUP,),), (LINT, (ALL_PURE,))),
    20 * MINUTE,
)
LINTERS = Part("lint", "formatting, style, types and arrows", (((SETUP,),), (LINT,)), 20 * MINUTE)
DEEP = (
    _alone("test-slow", "pure tests that take more than a second each", SLOW),
    _alone(
        "test-processes",
        "all tests with SideCars, trainings, servers and browsers",
        _pytest(
            "all-processes",
            *_marked("processes", without=("cluster", "nodes", *OTHERS)),
            workers=2,
            minutes=90,
        ),
        servers=True,
    ),
    _alone(
        "test-control-plane",
        "all tests on a real control plane of Kubernetes",
        _pytest(
            "all-control-plane",
            *_marked("cluster", without=("nodes", *OTHERS)),
            workers=1,
            minutes=90,
        ),
        servers=True,
    ),
    _alone(
        "test-nodes",
        "all tests on real nodes with containers: as root, on Debian",
        _pytest("all-nodes", *_marked("nodes", without=OTHERS), workers=1, minutes=90, root=True),
        servers=True,
    ),
    _alone(
        "chaos",
        "kills controllers, operators, SideCars and trainings, and checks what is left",
        _command("chaos-machine", "-m", "tests.chaos", minutes=60),
        _command("histories", "-m", "tests.local.histories", minutes=60),
        _command("torn", "-m", "tests.sidecar.torn", minutes=60),
        _command("live", "-m", "tests.chaos.live", minutes=60),
        _command("live-controllers", "-m", "tests.chaos.live_controllers", minutes=60),
        _command("chaos-operators", "-m", "tests.operator.chaos", minutes=90),
        _command("chaos-nodes", "-m", "tests.cluster.chaos", minutes=90, root=True),
        servers=True,
    ),
    _alone(
        "attack",
        "hostile inputs, damaged folders, set clocks, full disks",
        _command("attacks", "-m", "tests.attack", minutes=120),
        servers=True,
    ),
    _alone(
        "test-long",
        "every trace to its end",
        _pytest("long", "--long", "--timeout", "3600", workers=2, minutes=240),
    ),
    _alone(
        "test-frameworks",
        "the examples with PyTorch and TensorFlow, which it installs (2.3 GB)",
        Step("frameworks", ("make", ".frameworks/.installed"), 60 * MINUTE, 4, building=True),
        _pytest("with-frameworks", *_marked("frameworks"), workers=0, minutes=60),
    ),
    _alone(
        "bench",
        "every benchmark in its quick form",
        Step("benchmarks", (PYTHON, "scripts/run-benchmarks"), 180 * MINUTE),
        servers=True,
    ),
)
PARTS = {part.name: part for part in (GATE, CHECK, LINTERS, *DEEP)}


def again(tests: Sequence[str]) -> Step:
    """Run the failed tests once more, and nothing else at the same time."""
    return _pytest("again", *tests, workers=1, minutes=10)


def environment() -> dict[str, str]:
    """The environment of each step, in addition to the variables of the caller."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        # Results of mypy about a file hold in every checkout of the same file.
        "MYPY_CACHE_DIR": str(home / "dljob-mypy"),
        # The servers of Kubernetes have memory enough, and better things to do than to collect it.
        "GOGC": "400",
    }
