"""
The tools of :mod:`dljob.cli.verbs.agents.reading` that play traces.

Each game is a process of its own with a limit of time, so that a long one neither keeps the memory of the server nor
runs on after its question was given up. An agent chooses what the process reads, so a tool takes names of policies
that DLJob ships, and traces in the folders that the user has named; each word is the value of its option.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from dljob.cli.verbs.agents.calls import Halt, Halted
from dljob.cli.verbs.agents.protocol import ToolRefused
from dljob.cli.verbs.agents.tools import Asked, text, whole
from dljob.client.backend import Json

LONGEST_S: Final = 180.0
MOST_CPU_S: Final = 360
"""Ends a game whose server was killed."""
MOST_BYTES: Final = 2 << 30
"""The memory of a game; a small compressed trace can be large when it is read."""
MOST_GPUS: Final = 100_000
MOST_POLICIES: Final = 20

_SCRIPT: Final = (
    f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({MOST_CPU_S}, {MOST_CPU_S}));"
    f"resource.setrlimit(resource.RLIMIT_AS, ({MOST_BYTES}, {MOST_BYTES}));"
    "from dljob.cli.main import main; main()"
)
COMMAND: Final = ("-c", _SCRIPT)

ENDINGS: Final = (".csv", ".csv.gz", ".yaml", ".yml", ".json")
"""Endings of traces. Errors about a trace quote it, so no other files are read."""

GAME: Final[Mapping[str, Any]] = {
    "trace": text(
        "The path of a trace in the folders that the user allows: CSV with"
        " job_id,submit_time_s,duration_s,num_gpus, or YAML of DLJobs."
    ),
    "policies": {
        "type": "array",
        "items": text("The name of a policy, with its options."),
        "maxItems": MOST_POLICIES,
        "description": "Names as list_policies has them; options follow a name: tiresias:thresholds=3250,7200.",
    },
    "gpus": whole(
        "The number of GPUs of the cluster, in nodes of eight; 64 without it.",
        least=1,
        most=MOST_GPUS,
    ),
}


def simulate(asked: Asked) -> Json:
    given = asked.given
    trace = _find_trace(given["trace"], asked.traces)
    names = [f"--policy={_check_policy(name)}" for name in given.get("policies", ())]
    size = [f"--gpus={given['gpus']}"] if "gpus" in given else []
    played = _play(
        (*COMMAND, "simulate", *names, *size, "-o", "json", "--", str(trace)), asked.halt
    )
    return {"results": played.answer, "notices": played.notices}


def list_policies(asked: Asked) -> Json:
    return {"policies": _play((*COMMAND, "policies", "-o", "json"), asked.halt).answer}


def _check_policy(name: str) -> str:
    """Refuse the policy of a file, because playing it runs its code."""
    from dljob.sim import policies  # noqa: PLC0415 - it loads the brain, which no other tool needs here

    if policies.parse(name) is not None or not (name.isascii() and name.isprintable()):
        raise ToolRefused(
            f"policies: {name!r} is no policy that DLJob ships; take a name from list_policies."
            " A user plays a policy of a file with dljob simulate in a terminal"
        )
    return name


def _find_trace(path: str, folders: Sequence[Path]) -> Path:
    """Find a trace in the allowed folders, without revealing whether other files exist."""
    found = _resolve(folders[0], path)
    if found is None or not _is_allowed(found, folders):
        known = ", ".join(map(str, folders))
        raise ToolRefused(
            f"trace: {path!r} is not in {known}, or is hidden; take a trace from there, or let the"
            " user start dljob mcp with --traces DIR"
        )
    if not found.is_dir() and not (found.is_file() and found.name.endswith(ENDINGS)):
        raise ToolRefused(
            f"trace: there is no {path!r}, or it is no trace; name a folder of job files, or a file"
            f" that ends with {', '.join(ENDINGS)}"
        )
    for each in _list(found, path):
        if each.name.endswith(ENDINGS) and not _is_allowed(each.resolve(), folders):
            raise ToolRefused(
                f"trace: {each.name} in {path!r} is hidden, or leads out of the folders that the user"
                " allows; name one file"
            )
    return found


def _list(found: Path, path: str) -> list[Path]:
    try:
        return list(found.iterdir()) if found.is_dir() else []
    except OSError as error:
        raise ToolRefused(f"trace: {path!r} cannot be read ({error.strerror})") from error


def _is_allowed(path: Path, folders: Sequence[Path]) -> bool:
    """Return true if a resolved path is in one of the folders, and not hidden there."""
    inside = [path.relative_to(each).parts for each in folders if path.is_relative_to(each)]
    return any(not any(part.startswith(".") for part in parts) for parts in inside)


def _resolve(folder: Path, path: str) -> Path | None:
    """Resolve a path; ``None`` if it is invalid."""
    try:
        return (folder / path).resolve()
    except (OSError, ValueError, RuntimeError):
        return None


class _Played(NamedTuple):
    answer: Any
    notices: list[str]


def _play(words: Sequence[str], halt: Halt) -> _Played:
    """Run one of our modules in a process that ends with the call; return its document."""
    game = subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-P", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C goes to the server, which ends its games.
        start_new_session=True,
    )
    is_late = False
    with game, halt.ending(game.kill):
        try:
            written, told = game.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            is_late = True
            game.kill()
            written, told = game.communicate()
    if halt.is_set:
        raise Halted
    if is_late or game.returncode == -signal.SIGXCPU:
        raise ToolRefused(
            f"the game is not over after {LONGEST_S:.0f} s, or takes too much of the processor;"
            " ask for fewer policies or a shorter trace"
        )
    if game.returncode != 0 and "MemoryError" in told:
        raise ToolRefused(
            f"the game takes more than {MOST_BYTES >> 30} GiB of memory; ask for a shorter trace"
        )
    if game.returncode != 0:
        raise ToolRefused(told.strip() or f"the game ended with {game.returncode}")
    return _Played(json.loads(written), told.splitlines())
