"""
A training that writes checkpoints like a framework, and reports whether it resumed from a torn one.

``python savers.py TOKEN SHAPE FOLDER JOURNAL [gap=S] [every=N]``; the folder ``-`` is that of the
environment. It finds its checkpoint by name, as a framework does, and compares every byte. The journal
says ``resumed N``, ``trains GENERATION``, ``torn WHAT`` or ``failed WHAT``. It saves on SIGUSR1 and every
N steps, with ``gap`` seconds between two files of a checkpoint.

The folder also gets a CSV file that grows with each step, and an event file that stays open.
"""

# ruff: noqa: PTH103, PTH104, PTH107, PTH106, PTH110, PTH123, PTH207, PTH208
# (pathlib would be most of what a start costs)
from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import pickle
import re
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

BYTES = 40_000
BLOCKS = 4
STEP_SECONDS = 0.01
TORN = 3
PORT = 20000
"""The port of generation 0, as the tests number them."""


@dataclass
class Request:
    """An open request to save."""

    is_open: bool = False

    def take(self, *_: object) -> None:
        self.is_open = True


@dataclass(frozen=True)
class Files:
    """A kind of checkpoint: its files in the order of writing, and the search for the latest."""

    unit: str
    """The name of a checkpoint, with its step."""
    names: tuple[str, ...]
    """The files below the unit; the empty name is the unit itself."""
    finds: str
    """A framework resumes from the matching unit with the highest step."""
    renames: bool = False


SHAPES: Mapping[str, Files] = MappingProxyType(
    {
        "huggingface": Files(
            "checkpoint-{}",
            ("config.json", "model.safetensors", "training_args.bin", "trainer_state.json"),
            r"checkpoint-(\d+)$",
        ),
        "dcp": Files("step_{}", ("__0_0.distcp", "__1_0.distcp", ".metadata"), r"step_(\d+)$"),
        "lightning": Files("epoch=0-step={}.ckpt", ("",), r"epoch=0-step=(\d+)\.ckpt$"),
        "several": Files("step-{}", ("model.bin", "optimizer.bin"), r"step-(\d+)$"),
        "marker": Files(
            "step-{}", ("model.bin", "optimizer.bin", ".dljob-complete"), r"step-(\d+)$"
        ),
        "rename": Files("step-{}", ("model.bin", "optimizer.bin"), r"step-(\d+)$", renames=True),
    }
)


def make_content(name: str, step: int) -> bytes:
    """Return the content of a file at a step, in the format of its name."""
    body = (f"{step}:{name}:".encode() * (BYTES // 8))[:BYTES]
    if name.endswith(".json"):
        return json.dumps({"step": step, "body": body.decode()}).encode()
    if name == ".metadata":
        return pickle.dumps((step, body))
    if name.endswith(".safetensors"):
        header = json.dumps({"w": {"dtype": "U8", "shape": [BYTES], "data_offsets": [0, BYTES]}})
        return len(header).to_bytes(8, "little") + header.encode() + body
    if name.endswith(".ckpt"):
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr(zipfile.ZipInfo("data.pkl"), body)
        return whole.getvalue()
    return body


class Saver:
    """Writes and reads the checkpoints of one shape."""

    def __init__(self, shape: Files, folder: str, gap: float) -> None:
        self.shape = shape
        self.folder = folder
        self.gap = gap

    def paths(self, step: int, folder: str = "") -> Iterator[tuple[str, bytes]]:
        unit = folder or f"{self.folder}/{self.shape.unit.format(step)}"
        for name in self.shape.names:
            yield f"{unit}/{name}".rstrip("/"), make_content(name or unit, step)

    def save(self, step: int) -> None:
        unit = f"{self.folder}/{self.shape.unit.format(step)}"
        made = f"{self.folder}/.tmp-{step}" if self.shape.renames else unit
        if self.shape.names != ("",):
            os.makedirs(made, exist_ok=True)
        for number, (path, content) in enumerate(self.paths(step, made)):
            if number:
                time.sleep(self.gap)
            self.write(path, content)
        if self.shape.renames and not os.path.exists(unit):
            os.rename(made, unit)

    def write(self, path: str, content: bytes) -> None:
        final, path = path, f"{path}.tmp" if path.endswith(".metadata") else path
        with open(path, "wb", buffering=0) as file:
            for at in range(BLOCKS):
                size = -(-len(content) // BLOCKS)
                file.write(content[at * size : (at + 1) * size])
                time.sleep(self.gap / (BLOCKS if self.shape.names == ("",) else 50))
            os.fsync(file.fileno())
        if path != final:
            os.rename(path, final)

    def find(self) -> int | None:
        """Return the step of the latest checkpoint, as a framework finds it."""
        named = (re.search(self.shape.finds, name) for name in glob.glob(f"{self.folder}/*"))
        return max((int(match.group(1)) for match in named if match), default=None)

    def find_torn(self, step: int) -> str:
        """Return the first file with wrong content; empty if there is none."""
        for path, content in self.paths(step):
            if read(path) != content:
                return path
        return ""

    def keep_few(self) -> None:
        """Remove all but the latest two, as frameworks do by their ``save_total_limit``."""
        steps = sorted(
            int(match.group(1))
            for match in (re.search(self.shape.finds, name) for name in os.listdir(self.folder))
            if match
        )
        for step in steps[:-2]:
            for path, _ in self.paths(step):
                if os.path.exists(path):
                    os.remove(path)
            if self.shape.names != ("",):
                os.rmdir(f"{self.folder}/{self.shape.unit.format(step)}")


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def train(saver: Saver, request: Request, tell: Callable[[str], None], every: int) -> None:
    step = saver.find()
    torn = "" if step is None else saver.find_torn(step)
    if torn:
        tell(f"torn {torn}")
        sys.exit(TORN)
    step = step or 0
    tell(f"resumed {step}")
    has_begun = False
    events = open(f"{saver.folder}/events.out.tfevents.{os.getpid()}", "wb", buffering=0)  # noqa: SIM115 - it stays open
    while True:
        step += 1
        time.sleep(STEP_SECONDS)
        with contextlib.suppress(OSError), open(f"{saver.folder}/metrics.csv", "a") as log:
            events.write(b"event")
            log.write(f"{step},0.5\n")
        if not has_begun:
            has_begun = True
            tell(f"trains {int(os.environ['MASTER_PORT']) - PORT}")
        print(f"step {step}", flush=True)  # noqa: T201 - it is how progress is read
        if request.is_open or step % every == 0:
            request.is_open = False
            try:
                saver.save(step)
                saver.keep_few()
            except OSError as error:
                # Most trainings would end; one that continues is the harder case.
                tell(f"failed {error}")


def main(_token: str, shape: str, folder: str, journal: str, *options: str) -> None:
    given = dict(one.partition("=")[::2] for one in options)
    request = Request()
    signal.signal(signal.SIGUSR1, request.take)

    def tell(line: str) -> None:
        file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    folder = folder if folder != "-" else os.environ["DLJOB_CHECKPOINT_DIR"]
    saver = Saver(SHAPES[shape], folder, float(given.get("gap", "0.1")))
    train(saver, request, tell, int(given.get("every", "100000")))


if __name__ == "__main__":
    main(*sys.argv[1:])
