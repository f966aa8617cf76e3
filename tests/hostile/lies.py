"""
The answers of a hostile SideCar, kind by kind: each derives a lie from the true state of an honest
one.

A lie gets the state as parsed JSON and returns another one; a :class:`Manner` is a way to
answer, or not to. Most begin when the training runs, so that the job has GPUs to lie about.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

HIGHEST = 2**53 - 1
MOST_GPUS = 32
"""At least as many as any node of a test has."""
ALL = tuple(map(str, range(MOST_GPUS)))
REVERSED = "\u202e\u2066\x1b]0;owned\x07\x1b[2J\x9b31m\u2028\ud800"


@dataclass
class Memory:
    """The memory of a liar from one answer to the next."""

    states: list[Json] = field(default_factory=list)
    """The true ones, of which it repeats some."""
    answers: int = 0


Contradiction = Callable[[Json, Memory], Json]


@dataclass(frozen=True)
class Kind:
    """One way to be hostile."""

    lie: Contradiction | None = None
    manner: str = ""
    """How the answer is sent, where not as it should be."""
    refuses: Json | None = None
    """With what each command is refused instead of being passed on."""
    is_exposed: bool = False
    """Whether it says what cannot be, so that its pod is ended and its job told so."""
    from_the_start: bool = False


def _with(**fields: Any) -> Contradiction:
    return lambda state, _: {**state, **copy.deepcopy(fields)}


def _epoch(epoch: int) -> Contradiction:
    def lie(state: Json, _: Memory) -> Json:
        target = {**state["target"], "epoch": epoch} if state["target"] else None
        return {**state, "epoch": epoch, "target": target}

    return lie


def _next_epoch(state: Json, memory: Memory) -> Json:
    return _epoch(state["epoch"] + 1)(state, memory)


def _generation(state: Json, _: Memory) -> Json:
    target = {**state["target"], "generation": HIGHEST}
    return {**state, "generation": HIGHEST, "target": target}


def _others_gpus(state: Json, _: Memory) -> Json:
    target = state["target"]
    if target is None or target["kind"] != "run":
        return state
    return {**state, "held": list(ALL), "target": {**target, "gpus": list(ALL)}}


def _holds_without_command(state: Json, _: Memory) -> Json:
    return {**state, "held": list(ALL)}


def _gpus(**fields: Any) -> Contradiction:
    def lie(state: Json, _: Memory) -> Json:
        return {**state, "gpus": [{"index": number, **fields} for number in range(MOST_GPUS)]}

    return lie


def _swapped_names(state: Json, _: Memory) -> Json:
    names = [{"index": n, "uuid": f"GPU-{(n + 1) % 4:08d}"} for n in range(4)]
    return {**state, "gpus": names}


def _problem(name: str) -> Contradiction:
    problem = {"name": name, "message": f"{name} {REVERSED}", "remedy": "none"}
    return _with(problems=[problem])


def _replay(state: Json, memory: Memory) -> Json:
    return memory.states[0]


def _new_incarnations(state: Json, memory: Memory) -> Json:
    return {**state, "incarnation": f"start-{memory.answers}"}


def _flood(state: Json, memory: Memory) -> Json:
    phase = ("Running", "Checkpointing")[memory.answers % 2]
    return {**state, "version": 10**6 + memory.answers, "phase": phase}


def _huge(state: Json, _: Memory) -> Json:
    progress = {
        "iteration": HIGHEST,
        "epoch": 1e300,
        "batchSize": HIGHEST,
        "metrics": {f"m{n}": 1e300 for n in range(64)},
        "iterationsPerSecond": 1e300,
        "idleSeconds": 1e300,
        "begun": True,
        "stalled": False,
        "interval": HIGHEST,
    }
    change = {
        "generation": state["generation"],
        "saving": "confirmed",
        "checkpointSeconds": 1e300,
        "stopSeconds": 1e300,
        "startSeconds": 1e300,
    }
    warmth = dict.fromkeys(("wanted", "ready", "memoryBytes", "limitBytes"), HIGHEST)
    return {
        **state,
        "version": HIGHEST,
        "progress": progress,
        "change": change,
        "warmth": warmth,
        "gpus": [{"index": n, "memoryUsed": HIGHEST} for n in range(64)],
    }


def _ended_badly(state: Json, _: Memory) -> Json:
    return {
        **state,
        "phase": "Failed",
        "released": True,
        "held": [],
        "processes": [{"rank": 0, "pid": 1, "exitCode": 1}],
        "failure": {
            "rank": 0,
            "at": 1e300,
            "exitCode": 1,
            "exception": REVERSED,
            "lines": [REVERSED * 20] * 20,
        },
    }


def _never_done(state: Json, memory: Memory) -> Json:
    running = [each for each in memory.states if each["phase"] == "Running"]
    return {**running[0], "version": state["version"]}


KINDS: dict[str, Kind] = {
    "highest-epoch": Kind(_epoch(HIGHEST), is_exposed=True),
    "next-epoch": Kind(_next_epoch, is_exposed=True),
    "refuses-by-a-later-epoch": Kind(
        refuses={"error": "OlderTerm", "message": REVERSED, "epoch": HIGHEST},
        is_exposed=True,
        from_the_start=True,
    ),
    "refuses-by-nonsense": Kind(
        refuses={"error": "SameTermOtherTarget", "message": REVERSED * 99, "path": REVERSED},
        from_the_start=True,
    ),
    "another-installation": Kind(_with(installation="another"), is_exposed=True),
    "highest-generation": Kind(_generation, is_exposed=True),
    "takes-the-gpus-of-others": Kind(_others_gpus, is_exposed=True),
    "holds-the-gpus-of-others": Kind(_holds_without_command, is_exposed=True),
    "xids-of-all": Kind(_gpus(xidErrors=[79, 48, HIGHEST])),
    "loses-all": Kind(_gpus(lostBecause=REVERSED)),
    "sees-no-gpu": Kind(_problem("GPUsNotVisible")),
    "names-gpus-wrongly": Kind(_swapped_names, from_the_start=True),
    "many-problems": Kind(
        _with(problems=[{"name": f"P{n}", "message": REVERSED * 200} for n in range(64)])
    ),
    "replays-its-first-state": Kind(_replay, from_the_start=True),
    "new-start-each-time": Kind(_new_incarnations),
    "flood-of-changes": Kind(_flood),
    "highest-numbers": Kind(_huge),
    "fails-with-control-characters": Kind(_ended_badly),
    "never-does-what-it-is-told": Kind(_never_done),
    "garbage": Kind(manner="garbage"),
    "endless-body": Kind(manner="endless"),
    "nested-too-deep": Kind(manner="nested"),
    "endless-headers": Kind(manner="headers"),
    "one-byte-a-second": Kind(manner="drip"),
    "silent-when-it-runs": Kind(manner="silent"),
    "hangs-up": Kind(manner="hang-up"),
}
"""All of them, by name."""
