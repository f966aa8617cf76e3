"""A real ``dljob up`` in a process of its own, and the real command."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dljob.client.backend import Away
from dljob.client.local.local_backend import LocalBackend
from dljob.local.folders import Folders
from tests import endings
from tests.ctl.running import LONGEST_S, Live, Result, run_apart

ROOT = Path(__file__).parents[2]
REPLAY = ROOT / "examples" / "replay" / "train.py"
SPEEDS = ROOT / "profiles" / "elasticflow" / "throughput.csv"


class Up:
    def __init__(self, root: Path, *options: object) -> None:
        self.root = root
        self.backend = LocalBackend(Folders(root).socket)
        """For what is waited for: a command takes a second to start where all cores are busy."""
        self.log = root.with_name(f"{root.name}.log")
        self._options = options
        self.begin()

    is_killed = False

    def begin(self) -> None:
        self.is_killed = False
        script = "from dljob.cli.main import main; main()"
        words = (sys.executable, "-c", script, "up", "--state", str(self.root))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, *map(str, self._options)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def kill(self) -> None:
        """Kill the controller alone; its SideCars and trainings live on."""
        self.is_killed = True
        self.process.kill()
        self.process.wait(LONGEST_S)

    def ready(self) -> None:
        def answers() -> bool:
            try:
                return bool(self.backend.about())
            except Away:
                return False

        self.until(answers)

    def __call__(self, *words: object) -> Result:
        """Run the command; options come before what follows ``--``."""
        place = words.index("--") if "--" in words else len(words)
        return run_apart(*words[:place], "--state", self.root, *words[place:])

    def live(self, *words: object) -> Live:
        return Live(*words, "--state", self.root)

    def submit(self, *documents: Any) -> Result:
        file = self.root.with_name(f"{self.root.name}.yaml")
        file.write_text("---\n".join(yaml.safe_dump(each) for each in documents), encoding="utf-8")
        return self("submit", file)

    def until_phase(self, name: str, phase: str) -> Any:
        found: list[Any] = []

        def is_so() -> bool:
            found[:] = [
                item
                for item in self.backend.list_jobs().items
                if item["metadata"]["name"] == name and item["status"]["phase"] == phase
            ]
            return bool(found)

        self.until(is_so)
        return found[0]

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + LONGEST_S
        while not true():
            assert time.monotonic() < end, self.log.read_text(encoding="utf-8")
            assert self.is_killed or self.process.poll() is None, self.log.read_text(
                encoding="utf-8"
            )
            time.sleep(0.02)

    def end(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        return self.process.wait(LONGEST_S)


@contextmanager
def going(root: Path, *options: object) -> Iterator[Up]:
    up = Up(root, *options)
    try:
        up.ready()
        yield up
    finally:
        up.process.kill()
        up.process.wait(LONGEST_S)
        kill_all(root)


def kill_all(root: Path) -> None:
    """Kill every process that knows of this folder, SideCars and trainings."""
    endings.kill_all(lambda: find_processes(root))
    # A killed server cannot tidy up, and its sockets may not be below the folder.
    shutil.rmtree(Folders(root).sockets, ignore_errors=True)


def find_processes(root: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if os.fsencode(root) in command and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def find_told(root: Path, variable: str) -> set[str]:
    """Return the values of a variable in the environments of the trainings that know of this folder."""
    name, found = os.fsencode(variable) + b"=", set()
    for pid in find_processes(root):
        # Some have just ended.
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {os.fsdecode(line[len(name) :]) for line in lines if line.startswith(name)}
    return found


def replay(name: str, root: Path, *, iterations: int, faster: float, **spec: Any) -> dict[str, Any]:
    """A job that paces itself by measured speeds, and saves itself on request."""
    checkpoint = root / "checkpoints" / name / "iteration"
    command = [
        *(sys.executable, str(REPLAY), f"--speeds={SPEEDS}", f"--checkpoint={checkpoint}"),
        *(f"--iterations={iterations}", f"--faster={faster}"),
    ]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 4]},
            "framework": "none",
            "processes": "perNode",
            "training": {"iterations": iterations, "batchSize": 256},
            "profile": {"model": "resnet50", "dataset": "imagenet"},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {
                "signal": "SIGUSR1",
                "confirm": "file",
                "complete": "rename",
                "shared": True,
                "path": str(checkpoint.parent),
            },
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
            **spec,
        },
    }
