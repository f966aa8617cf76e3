"""
The tools of :mod:`dljob_mcp.reading` that play traces.

Each game is a process of its own with a limit of time, so that a long one neither keeps the memory of the server nor
runs on after its question was given up. An agent chooses what the process reads, so a tool takes names of policies
that DLJob ships, and traces in the folders that the user has named; each word is the value of its option.
"""

import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from dljob.client.backend import Json
from dljob_mcp.tools import Asked, Game, ToolRefused, text, whole

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


def simulate(asked: Asked) -> Game:
    given = asked.given
    trace = _find_trace(given["trace"], asked.traces)
    names = [f"--policy={_check_policy(name)}" for name in given.get("policies", ())]
    size = [f"--gpus={given['gpus']}"] if "gpus" in given else []
    words = (*COMMAND, "simulate", *names, *size, "-o", "json", "--", str(trace))
    return Game(words, lambda results, notices: {"results": results, "notices": notices})


def list_policies(_: Asked) -> Game:
    return Game((*COMMAND, "policies", "-o", "json"), lambda policies, _: {"policies": policies})


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


async def play(game: Game) -> Json:
    """Play a game in a process that ends with the call; raises :class:`ToolRefused`."""
    late = ToolRefused(
        f"the game is not over after {LONGEST_S:.0f} s, or takes too much of the processor;"
        " ask for fewer policies or a shorter trace"
    )
    # A file, because a process that ends early would break a pipe.
    with tempfile.TemporaryFile() as question:
        question.write(game.question.encode())
        question.seek(0)
        try:
            with anyio.fail_after(LONGEST_S):
                # Ctrl-C goes to the server, which ends its games.
                ended = await anyio.run_process(
                    [sys.executable, "-P", *game.words],
                    stdin=question,
                    check=False,
                    start_new_session=True,
                )
        except TimeoutError as error:
            raise late from error
    problems = ended.stderr.decode("utf-8", "replace")
    if ended.returncode == -signal.SIGXCPU:
        raise late
    if ended.returncode != 0 and "MemoryError" in problems:
        raise ToolRefused(
            f"the game takes more than {MOST_BYTES >> 30} GiB of memory; ask for a shorter trace"
        )
    if ended.returncode != 0:
        raise ToolRefused(problems.strip() or f"the game ended with {ended.returncode}")
    return game.read(json.loads(ended.stdout), problems.splitlines())
