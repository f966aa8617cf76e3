"""The witness of everything here: `nvidia-smi`, asked as an administrator would ask it."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from typing import Self

ASK_SECONDS = 240.0
LOOK_MS = 50


class NoGpu(Exception):
    """There is nothing to look at: in one line, why."""


def ask(*words: str) -> list[list[str]]:
    """Ask nvidia-smi a question; returns rows of fields. Raises :class:`NoGpu` where it cannot be asked."""
    command = ["nvidia-smi", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise NoGpu("there is no nvidia-smi") from error
    if done.returncode != 0:
        told = (done.stdout + done.stderr).strip().splitlines()
        raise NoGpu(f"nvidia-smi: {told[-1] if told else f'exit status {done.returncode}'}")
    lines = done.stdout.strip().splitlines()
    return [[word.strip() for word in line.split(",")] for line in lines]


def query(*fields: str) -> list[dict[str, str]]:
    rows = ask(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    return [dict(zip(fields, row, strict=True)) for row in rows]


def used_mib(uuid: str) -> int:
    return next(
        int(row["memory.used"]) for row in query("uuid", "memory.used") if row["uuid"] == uuid
    )


def processes_on(uuid: str) -> list[int]:
    """The processes that compute on a GPU; none where the driver does not show them, as in many VMs."""
    rows = ask("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
    return [int(row[1]) for row in rows if row[0] == uuid and row[1].isdigit()]


@dataclass
class Sampler:
    """Follows the memory of one GPU as one nvidia-smi tells it; several programs at once show by it."""

    uuid: str
    limit_mib: int
    """More memory than this means more than one program."""
    samples: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        fields = "--query-gpu=uuid,memory.used"
        self._process = subprocess.Popen(
            ["nvidia-smi", fields, "--format=csv,noheader,nounits", f"--loop-ms={LOOK_MS}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(ASK_SECONDS)
        self._thread.join(ASK_SECONDS)
        assert not self._thread.is_alive()

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            uuid, _, used = line.partition(",")
            if uuid.strip() == self.uuid and used.strip().isdigit():
                self.samples.append(int(used))

    @property
    def crowded(self) -> list[int]:
        """The samples that are too large for one program."""
        return [used for used in self.samples if used > self.limit_mib]
