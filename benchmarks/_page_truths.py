"""The truth that the page's views are compared with: the commands' output, and the API server's DLJobs as they are."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from dljob.cli.main import cli

Json = dict[str, Any]

CHANGES = ("start", "reshape", "move", "stop")
"""The scheduler's decisions that change the GPUs of a job."""
IS_OVER = ("Completed", "Failed")


def run_command(*words: object) -> str:
    """Run ``dljob`` in this process, and return its output."""
    result = CliRunner().invoke(cli, list(map(str, words)), obj=words)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


class Block(NamedTuple):
    """A GPU that a job has for some time, in seconds since 1970."""

    node: str
    gpu: int
    job: str
    begin: float
    end: float
    generation: int


@dataclass(frozen=True)
class Truth:
    """The commands' output at one moment."""

    kubeconfig: Path
    namespace: str
    store: Path
    folder: Path
    jobs: Sequence[Json]
    """The DLJobs of the API server."""

    @cached_property
    def _record(self) -> tuple[Json, list[Json]]:
        text = run_command("record", "--store", self.store)
        header, *lines = map(json.loads, text.splitlines())
        return header, lines

    @property
    def lines(self) -> list[Json]:
        return self._record[1]

    @property
    def begin(self) -> float:
        return float(min(line["at"] for line in self.lines))

    def report(self, by: str, until: float, *, form: str = "json") -> str:
        """Run ``dljob report`` on the record until the page's time."""
        file = self.folder / "truth.jsonl"
        header = {**self._record[0], "until": until}
        rows = (json.dumps(each) for each in (header, *self.lines) if each.get("at", 0) <= until)
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return run_command("report", "--record", file, "--by", by, "-o", form)

    def describe(self) -> dict[str, Json]:
        """Describe each DLJob, and list its history, by its name with its namespace."""
        place = ("--kubeconfig", self.kubeconfig, "-n", self.namespace, "-o", "json")
        names = [job["metadata"]["name"] for job in self.jobs]
        told = json.loads(run_command("describe", *place, *names))
        for name, each in zip(names, told, strict=True):
            each["history"] = json.loads(run_command("history", *place, "--limit=1000", name))
        return {full_name(each["job"]): each for each in told}

    def list_lines(self, job: str, *kinds: str) -> list[Json]:
        return [line for line in self._by_job.get(job, ()) if line["kind"] in kinds]

    @property
    def names(self) -> list[str]:
        """The jobs of the record."""
        return list(self._by_job)

    @cached_property
    def _by_job(self) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        for line in self.lines:
            if "job" in line:
                found.setdefault(line["job"], []).append(line)
        return found

    def list_blocks(self, until: float) -> Iterator[Block]:
        """Yield which job had which GPU when."""
        held: dict[str, Json] = {}
        for line in self.lines:
            if line["kind"] not in ("given", "ended"):
                continue
            if former := held.pop(line["job"], None):
                yield from _list_parts(former, line["at"])
            if line.get("placement"):
                held[line["job"]] = line
        for former in held.values():
            yield from _list_parts(former, until)

    def list_gpus(self) -> Mapping[tuple[str, int], str]:
        """Describe each GPU by the DLJobs, as the map of GPUs says it."""
        found: dict[tuple[str, int], str] = {}
        left: dict[tuple[str, int], str] = {}
        for job in self.jobs:
            name, status = full_name(job), job.get("status", {})
            state = "in use" if status.get("phase") in ("Running", "Adjusting") else "reserved"
            for node, gpu in _list_refs(status.get("allocation", {}).get("nodes", ())):
                found[node, gpu] = f"GPU {gpu}: {state}, {name}"
            for node, gpu in _list_refs(status.get("leftover", ())):
                left[node, gpu] = f"GPU {gpu}: in use, {name}"
        # A job that has yet to release a GPU comes before the next one.
        return found | left

    @property
    def is_settled(self) -> bool:
        """True if the store and the API server have the same decisions and ends; one is written before the other."""
        there = {full_name(job) for job in self.jobs}
        removed = (name for name in self.names if name not in there)
        return all(map(self._is_settled, self.jobs)) and all(
            self.list_lines(name, "ended") for name in removed
        )

    def _is_settled(self, job: Json) -> bool:
        name, status = full_name(job), job.get("status", {})
        history = status.get("history", ())
        kept = [each["generation"] for each in history if each["kind"] in CHANGES]
        lines = self.list_lines(name, "decided")
        recorded = [line["generation"] for line in lines if line["step"] in CHANGES]
        is_over = bool(self.list_lines(name, "ended"))
        return kept[-1:] == recorded[-1:] and is_over == (status.get("phase") in IS_OVER)

    def list_queue(self) -> list[Json]:
        """List the DLJobs that wait, in the order of their turns."""
        waiting = [
            job
            for job in self.jobs
            if "queue" in job.get("status", {}) or job.get("status", {}).get("phase") == "Queued"
        ]
        return sorted(waiting, key=lambda job: job["status"].get("queue", {}).get("ahead", 10**9))


def full_name(job: Json) -> str:
    metadata = job["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _list_refs(parts: Iterable[Json]) -> Iterator[tuple[str, int]]:
    return ((part["name"], gpu) for part in parts for gpu in part["gpuIds"])


def _list_parts(given: Json, end: float) -> Iterator[Block]:
    if end <= given["at"]:
        return
    for node, gpu in _list_refs(given["placement"]["nodes"]):
        yield Block(node, gpu, given["job"], given["at"], end, given["generation"])
