"""
Run parts of the tests: ``python -m tests.running PART…``, or ``deep`` for all parts of ``make deep``.

The run ends within the limits of its steps, even if tests hang. As root it is in a PID namespace of its own, elsewhere below a
subreaper, so nothing that it started outlives it. Its exit status: 0 green, 1 tests failed, 3 lint or the site failed, 4 something
could not be built, 5 too many tests were flaky, 124 over time, 143 ended from outside.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.running import kernel, notes, reporting
from tests.running.keeping import OVER_TIME
from tests.running.notes import read_results
from tests.running.output import say
from tests.running.parts import DEEP, PARTS, again
from tests.running.supervising import Done, Ended, Supervisor

INSIDE = "--inside"
MOST_AGAIN = 10
"""Of more failed tests none is run again."""
ENDING_S = 18.0
"""From SIGTERM to the end of everything."""
GREEN = reporting.KEPT / "deep.json"


# --- outside: the namespace, and its end -----------------------------------------------------------


def main(words: list[str], program: Sequence[str] = ("-m", "tests.running")) -> int:
    """Run what the words name; ``program`` is how Python starts this very program."""
    if words[:1] == [INSIDE]:
        return run_inside(words[1:])
    try:
        return run_parts(words, program)
    except Ended as ended:
        return ended.status


def run_parts(words: list[str], program: Sequence[str]) -> int:
    """Run the named parts one after the other; the first failure is the status."""
    names = [part.name for part in DEEP] if words == ["deep"] else words
    if not names or (unknown := [name for name in names if name not in PARTS]):
        say(f"parts: deep, {', '.join(PARTS)}; not {', '.join(unknown if names else [])}")
        return 2
    kernel.end_with_parent()
    kernel.become_subreaper()
    _end_on_signals()
    # A short name, because sockets are below it.
    with tempfile.TemporaryDirectory(prefix="dj-", ignore_cleanup_errors=True) as folder:
        status = 0
        for name in names if words != ["deep"] else _not_yet_green(names):
            status = run_outside(name, Path(folder), program) or status
        return status


def run_outside(name: str, folder: Path, program: Sequence[str]) -> int:
    """Start the run where nothing can escape from it, and end it when this process is asked to end."""
    home, temporary = folder / name, folder / "t"
    for place in (folder, home, temporary):
        place.mkdir(exist_ok=True)
        # Users that tests make reach what is theirs below it, and can list nothing.
        place.chmod(0o711)
    command = [*_enclosed(), sys.executable, *program, INSIDE, name, str(home)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=dict(os.environ) | {"TMPDIR": str(temporary)},
        preexec_fn=_begin_below,  # noqa: PLW1509 - there are no threads
    )

    try:
        status = process.wait()
    except Ended as ended:
        _end_run(process)
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(ended.status)
    _kill_all(kernel.find_descendants(os.getpid()))
    shutil.rmtree(temporary, ignore_errors=True)
    return status


def _end_on_signals() -> None:
    """Raise :class:`Ended` where the program is when it is asked to end."""

    def end(signum: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Ended(128 + signum, f"ended by {signal.Signals(signum).name}")

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)


def _begin_below() -> None:
    kernel.unblock_signals()
    kernel.end_with_parent()
    os.setpgid(0, 0)


def _enclosed() -> list[str]:
    """The command that makes a PID namespace, where this user may."""
    words = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=60)
    return words if tried.returncode == 0 else []


def _end_run(process: "subprocess.Popen[bytes]") -> None:
    """Ask the run to end, which unshare does not pass on; kill what does not."""
    below = kernel.find_descendants(process.pid)
    # Inside the namespace the run is the first child of unshare; elsewhere it is the process itself.
    for pid in below[:1] if _is_unshare(process.pid) else [process.pid]:
        os.kill(pid, signal.SIGTERM)
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        say("the run does not end, so it is killed")
    _kill_all([process.pid, *kernel.find_descendants(os.getpid())])


def _is_unshare(pid: int) -> bool:
    return kernel.describe_process(pid).split()[3:4] == ["unshare"]


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _not_yet_green(names: list[str]) -> list[str]:
    """The parts that were not green with the present files."""
    tree, known = _tree(), _known_green()
    left = [name for name in names if not tree or known.get(name, {}).get("tree") != tree]
    for name in names:
        if name not in left:
            say(f"== {name}: green with these files already ({GREEN}); rm {GREEN} runs it again")
    return left


def _known_green() -> dict[str, dict[str, object]]:
    if not GREEN.exists():
        return {}
    known: dict[str, dict[str, object]] = json.loads(GREEN.read_text(encoding="utf-8"))
    return known


def _tree() -> str:
    """The identity of all files as git knows them; empty where some have changed since the commit."""
    changed = subprocess.run(
        ("git", "status", "--porcelain"), capture_output=True, text=True, check=False, timeout=60
    )
    if changed.returncode != 0 or changed.stdout.strip():
        return ""
    words = ("git", "rev-parse", "HEAD^{tree}")
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


# --- inside: the run itself ------------------------------------------------------------------------


def run_inside(words: list[str]) -> int:
    part, folder = PARTS[words[0]], Path(words[1])
    kernel.become_subreaper()
    supervisor = Supervisor(part, folder)
    _end_on_signals()
    say(f"== {part.name}: {part.purpose}")
    reporting.print_machine()
    try:
        supervisor.run(part.rounds)
        return _finish(supervisor)
    except Ended as ended:
        say(f"\n{ended}")
        for running in notes.iter_running(folder):
            say(f"  running: {running}")
        supervisor.end()
        return ended.status
    finally:
        _kill_all(kernel.find_descendants(os.getpid()))


def _finish(supervisor: Supervisor) -> int:
    """Run once more what failed, print everything, and return the exit status."""
    folder, first = supervisor.folder, list(supervisor.done)
    results = [each for done in first for each in read_results(folder, done.step.name)]
    outcome = reporting.sum_up(results)
    flaky: frozenset[str] = frozenset()
    if 0 < len(outcome.failed) <= MOST_AGAIN:
        supervisor.run([((again(sorted(outcome.failed)),),)])
        flaky = reporting.sum_up(read_results(folder, "again")).passed & outcome.failed
    reporting.print_slowest(results)
    reporting.print_failures(outcome, flaky)
    reporting.keep_flaky(outcome, flaky)
    reporting.print_steps(supervisor.done, time.monotonic() - supervisor.begun)
    failed = outcome.failed - flaky
    status = _status(first, failed, flaky, folder)
    if status == 0:
        _keep_green(supervisor)
    if flaky:
        say(f"flaky: {', '.join(sorted(flaky))}")
    if left_out := ", ".join(step.name for step in supervisor.left_out):
        say(f"left out: {left_out}")
    passed = len(outcome.passed) + len(flaky)
    say(f"{passed} passed, {len(failed)} failed, {len(outcome.skipped)} skipped")
    return status


def _status(done: list[Done], failed: frozenset[str], flaky: frozenset[str], folder: Path) -> int:
    """Judge the steps: one that failed counts as good where all its failed tests were only flaky."""
    for each in done:
        own = reporting.sum_up(read_results(folder, each.step.name)).failed
        is_excused = bool(own) and own <= flaky and each.status == 1
        if not each.is_good and not is_excused:
            return OVER_TIME if each.status == OVER_TIME else each.step.status
    if failed:
        return 1
    return 5 if len(flaky) > reporting.MOST_FLAKY else 0


def _keep_green(supervisor: Supervisor) -> None:
    """Note that a part was green with these files, so that ``make deep`` can go on where it stopped."""
    if not (tree := _tree()):
        return
    reporting.KEPT.mkdir(exist_ok=True)
    cost = {
        "seconds": round(time.monotonic() - supervisor.begun),
        "processor_seconds": round(sum(done.cpu_s for done in supervisor.done)),
    }
    known = _known_green() | {supervisor.part.name: {"tree": tree, **cost}}
    GREEN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
