"""Compares each view of the page with the truth, while the operator is stopped so that both mean the same moment."""

import asyncio
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from _page_reading import Reading
from _page_truths import CHANGES, IS_OVER, Block, Truth, full_name
from _progress import say

Json = dict[str, Any]

PATIENCE_S = 60.0
"""The page shows everything by then: its server reads the store at most each half a minute at this size."""
EXACT_S = 0.002
"""The page has times in milliseconds."""
SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
ABSENT = "–"
SHOWN = (*CHANGES, "restart")
PARTS = (
    *("trained", "lostToChanges", "lostToFailures"),
    *("idle", "idleWhileWaiting", "outOfService"),
)
"""The names of the parts of GPU time in a report, in the order of the page."""


@dataclass
class Findings:
    """How many values were compared, and those that differ."""

    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def same(self, what: str, shown: object, true: object) -> None:
        self.compared += 1
        if shown != true:
            self.differences.append(f"{what}: the page has {shown!r}, the truth is {true!r}")

    def holds(self, what: str, is_so: bool) -> None:  # noqa: FBT001 - it is the value
        self.compared += 1
        if not is_so:
            self.differences.append(what)

    def near(self, what: str, shown: float, true: float, *, within: float) -> None:
        self.compared += 1
        if abs(shown - true) > within:
            self.differences.append(f"{what}: the page has {shown!r}, the truth is {true!r}")

    def hours(self, what: str, shown: str, true: float, *, slack: float = 0.0) -> None:
        """Compare GPU time, which the page rounds."""
        number, _, unit = shown.partition(" GPU-")
        size = 3600.0 if unit == "h" else 1.0
        digit = 0.1 if unit == "h" else 1.0
        self.near(what, float(number) * size, true, within=digit * size / 2 + 0.05 + slack)


class Comparison:
    """Compares the views one after the other; each again until there is no difference or the time is over."""

    def __init__(self, reading: Reading, truth: Truth) -> None:
        self._reading = reading
        self._truth = truth

    async def compare(self) -> dict[str, Findings]:
        """Compare each view, and each job's."""
        views = {
            "lanes": self._compare_lanes,
            "now": self._compare_now,
            "jobs": self._compare_jobs,
            "usage": self._compare_usage,
            "job": self._compare_each_job,
        }
        found = {}
        for name, compare in views.items():
            say(f"compares the view {name}")
            end = time.monotonic() + PATIENCE_S
            while (findings := await compare()).differences and time.monotonic() < end:
                await asyncio.sleep(1.0)
                await self._reading.renew()
            found[name] = findings
        return found

    async def _compare_lanes(self) -> Findings:
        found = Findings()
        data, lanes = await self._reading.read_lanes()
        epoch, until = data["epoch"], data["epoch"] + data["length"]
        found.near("begin", epoch, self._truth.begin, within=EXACT_S)
        shown = sorted(
            Block(
                *(lane["node"], lane["number"], job["name"]),
                *(epoch + begin, epoch + end),
                int(decision),
            )
            for lane in lanes
            for begin, end, number, decision in _group(lane["spans"], 4)
            for job in [data["jobs"][int(number)]]
        )
        true = sorted(self._truth.list_blocks(until))
        histories = {job["name"]: job["history"] for job in data["jobs"]}
        found.same("number of blocks", len(shown), len(true))
        for one, other in zip(shown, true, strict=False):
            what = f"{other.node} GPU {other.gpu}"
            found.same(what, one[:3], other[:3])
            found.near(f"{what}, begin of {other.job}", one.begin, other.begin, within=EXACT_S)
            found.near(f"{what}, end of {other.job}", one.end, other.end, within=EXACT_S)
            found.same(
                f"{what}, reason of {other.job}",
                histories[one.job][one.generation]["sentence"] if one.generation >= 0 else None,
                self._find_reason(other),
            )
        out = [
            line for line in self._truth.lines if line["kind"] == "gpu" and not line["inService"]
        ]
        found.same("outages", sum(len(lane["reasons"]) for lane in lanes), len(out))
        # The last block of each GPU, as a click tells it.
        for number, lane in enumerate(lanes):
            if not lane["spans"]:
                continue
            begin, end, job, _ = lane["spans"][-4:]
            told = await self._reading.read_block(number, (begin + end) / 2)
            found.same(f"told of GPU {number}", told["job"], data["jobs"][int(job)]["name"])
            found.holds(
                f"place told of GPU {number}",
                told["place"].startswith(f"{lane['node']}, GPU {lane['number']} "),
            )
        return found

    def _find_reason(self, block: Block) -> str | None:
        for line in self._truth.list_lines(block.job, "decided"):
            if line["generation"] == block.generation and line["step"] != "wait":
                return str(line.get("sentence", ""))
        return None

    async def _compare_now(self) -> Findings:
        found = Findings()
        shown = await self._reading.read_now()
        true = self._truth.list_gpus()
        labels = {
            (node["name"], number): label
            for node in shown["nodes"]
            for number, label in enumerate(node["gpus"])
        }
        for place, label in labels.items():
            found.same(str(place), label, true.get(place, f"GPU {place[1]}: idle"))
        found.same("GPUs that jobs have and the map lacks", true.keys() - labels.keys(), set())
        count = sum(": idle" not in each for each in labels.values())
        found.holds("GPUs", shown["title"].startswith(f"{len(labels)} GPUs: "))
        idle = len(labels) - count
        found.same("idle GPUs", _find(r"(\d+) idle", shown["title"]), str(idle) if idle else "")
        waiting = self._truth.list_queue()
        queue = shown["queue"]
        found.same("jobs that wait", len(queue), len(waiting))
        turns = [job["status"].get("queue", {}).get("ahead") for job in waiting]
        found.same("order", [_number(row[2]) for row in queue], turns)
        rows = {row[0]: row for row in queue}
        for job in waiting:
            self._compare_waiting(found, job, rows.get(full_name(job), [""] * 6))
        return found

    def _compare_waiting(self, found: Findings, job: Json, row: Sequence[str]) -> None:
        name, status = full_name(job), job["status"]
        turn = status.get("queue", {"unknownBecause": "its turn is not written yet"})
        found.same(f"{name}, priority", row[3], str(job["spec"].get("priority", 0)))
        because = status.get("message", "").removeprefix("waits: ")
        found.holds(f"{name}, reason", row[4].startswith(because))
        found.holds(f"{name}, unknown because", turn.get("unknownBecause", "") in row[4])
        if "expectedStart" in turn:
            left = max(0.0, _instant(turn["expectedStart"]) - time.time())
            found.near(f"{name}, start", _length(row[1]), left, within=max(15.0, left / 50))
        else:
            found.same(f"{name}, start", row[1], "not known")
        givers = [
            full_name(each)
            for each in self._truth.jobs
            if each.get("status", {}).get("phase") == "Adjusting"
            and each["status"].get("cause", {}).get("job") == name
        ]
        found.same(f"{name}, makes room", row[5], "".join(givers) or ABSENT)

    async def _compare_jobs(self) -> Findings:
        found = Findings()
        data, _ = await self._reading.read_lanes()
        until = data["epoch"] + data["length"]
        rows = {row[0]: row for row in await self._reading.read_jobs()}
        truth = self._truth
        found.same("names", sorted(rows), sorted(truth.names))
        missing = {full_name(job) for job in truth.jobs} - set(rows)
        found.same("jobs of the API server that are missing", missing, set())
        blocks: dict[str, list[Block]] = {name: [] for name in truth.names}
        for block in truth.list_blocks(until):
            blocks[block.job].append(block)
        phases = {full_name(job): job.get("status", {}).get("phase") for job in truth.jobs}
        for name in truth.names:
            row = rows.get(name, ["", "0", "0 GPU-s", "0", ""])
            held = [
                each["placement"]["gpus"]
                for each in truth.list_lines(name, "given")
                if each.get("placement")
            ]
            found.same(f"{name}, GPUs at most", int(row[1]), max(held, default=0))
            seconds = sum(each.end - each.begin for each in blocks[name])
            found.hours(f"{name}, GPU time", row[2], seconds)
            changes = [each for each in truth.list_lines(name, "decided") if each.get("old")]
            found.same(f"{name}, changes", int(row[3]), len(changes))
            ended = truth.list_lines(name, "ended")
            outcome = ended[-1]["outcome"] if ended else "not over" if seconds else "waits"
            found.same(f"{name}, outcome", row[4], outcome)
            of_server = phases.get(name, "Removed")
            found.same(
                f"{name}, phase",
                row[4] if row[4][0].isupper() else "",
                of_server if of_server in (*IS_OVER, "Removed") else "",
            )
        return found

    async def _compare_usage(self) -> Findings:
        found = Findings()
        data, _ = await self._reading.read_lanes()
        until = data["epoch"] + data["length"]
        parts, namespaces, *causes = await self._reading.read_usage()
        truth = json.loads(self._truth.report("namespace", until))
        for (title, shown, _), name in zip(parts, PARTS, strict=True):
            found.hours(title, shown, truth[name])
        found.same(
            "namespaces",
            [row[0] for row in namespaces],
            sorted(row["namespace"] for row in truth["rows"]),
        )
        by_name = {row["namespace"]: row for row in truth["rows"]}
        for name, *cells, _ in namespaces:
            for part, shown in zip((*PARTS[:3], "idleWhileWaiting"), cells, strict=True):
                found.hours(f"{name}, {part}", shown, by_name[name][part])
        shown_causes = {cause: shown for [table] in [causes or [[]]] for cause, shown, _ in table}
        true_causes = {
            cause or "No decision yet": seconds
            for cause, seconds in truth["idleWhileWaitingBy"].items()
        }
        found.same("causes", sorted(shown_causes), sorted(true_causes))
        for cause in shown_causes.keys() & true_causes.keys():
            found.hours(cause, shown_causes[cause], true_causes[cause])
        # The file that a user downloads.
        written = self._truth.report("namespace", until, form="csv").splitlines()
        rows = [line.rpartition(",") for line in data["sums"]["csv"].splitlines()]
        true_rows = [line.rpartition(",") for line in written]
        found.same("rows as CSV", [row[0] for row in rows], [row[0] for row in true_rows])
        for row, true in zip(rows[1:], true_rows[1:], strict=False):
            found.near(f"as CSV: {row[0]}", float(row[2]), float(true[2]), within=0.1)
        return found

    async def _compare_each_job(self) -> Findings:
        found = Findings()
        data, _ = await self._reading.read_lanes()
        until = data["epoch"] + data["length"]
        described = await asyncio.to_thread(self._truth.describe)
        rows = json.loads(self._truth.report("job", until))["rows"]
        report = {row["job"]: row for row in rows}
        for name in self._truth.names:
            shown = await self._reading.read_job(name, is_there=name in described)
            self._compare_history(found, name, shown["history"])
            # The page has been renewed since the report, and a job goes on with its GPUs.
            later = _moment(shown["until"]) + 1.0 - until
            most = max(
                (
                    each["new"]["gpus"]
                    for each in self._truth.list_lines(name, "decided")
                    if each.get("new")
                ),
                default=0,
            )
            slack = 0.0 if self._truth.list_lines(name, "ended") else max(0.0, most * later)
            told = next(each for each in shown["sentences"] if each.startswith("Trained "))
            texts = re.findall(r"[\d.]+ GPU-[sh]", told)
            for part, text in zip(PARTS[:3], texts, strict=True):
                seconds = report.get(name, {}).get(part, 0.0)
                found.hours(f"{name}, {part}", text, seconds, slack=slack)
            if name in described:
                self._compare_status(found, name, shown=shown, told=described[name])
                texts = [" ".join(entry["sentences"]) for entry in shown["history"]]
                history = described[name]["history"]
                # A restart is in the view as the crash that it follows. The reason to wait is that of now,
                # which is compared with the job's message; the record has that of each decision.
                decisions = [each for each in history if each["kind"] in SHOWN]
                for said in (each.get("message", "") for each in decisions):
                    found.holds(
                        f"{name}, in its history: {said}", any(said in text for text in texts)
                    )
        return found

    def _compare_history(self, found: Findings, name: str, shown: Sequence[Json]) -> None:
        """By the record."""
        true = self._truth.list_lines(name, "decided", "happened")
        found.same(
            f"{name}, history",
            [each["name"] for each in shown],
            [each.get("step") or each["name"] for each in true],
        )
        for entry, line in zip(shown, true, strict=False):
            what = f"{name}, {entry['name']}"
            found.near(f"{what}, time", _moment(entry["at"]), line["at"], within=1.0)
            sentence = line.get("sentence") or line.get("message")
            if sentence:
                found.same(f"{what}, reason", entry["sentences"][:1], [sentence])
            old, new = ((line.get(key) or {}).get("gpus", 0) for key in ("old", "new"))
            found.same(f"{what}, GPUs", entry["gpus"], f"{old} → {new} GPUs" if old != new else "")

    def _compare_status(self, found: Findings, name: str, *, shown: Json, told: Json) -> None:
        status = told["job"]["status"]
        conditions = [
            (each["type"], each["status"], f"{each['reason']}{each['message']}")
            for each in status.get("conditions", ())
        ]
        found.same(
            f"{name}, conditions", [tuple(row[:3]) for row in shown["conditions"]], conditions
        )
        for row, each in zip(shown["conditions"], status.get("conditions", ()), strict=False):
            found.near(
                f"{name}, {row[0]} since",
                _moment(row[3]),
                _instant(each["lastTransitionTime"]),
                within=1.0,
            )
        if status["phase"] in IS_OVER:
            found.holds(f"{name}, outcome", status["phase"] in shown["facts"])
            return
        found.holds(f"{name}, phase", status["phase"] in shown["facts"])
        now = next((each for each in shown["sentences"] if each.startswith("Now: ")), "")
        # A sentence may have a length of time until or since something.
        found.same(f"{name}, now", _without_numbers(now), _without_numbers(f"Now: {told['why']}"))
        progress = status.get("progress", {})
        curve = shown["curves"].get("Progress", "")
        # No curve is drawn of a job that has not reported.
        if progress.get("fraction"):
            share = _find(r"last reported: (\d+) %", curve)
            found.near(
                f"{name}, progress", float(share or -1), 100 * progress["fraction"], within=0.51
            )
        if "etaSeconds" in progress:
            left = _find(r"in ([\d.]+ [a-z]+(?: \d+ [a-z]+)?)[;.]", curve)
            found.near(
                f"{name}, end",
                _length(left),
                progress["etaSeconds"],
                within=max(1.0, 0.02 * progress["etaSeconds"]),
            )


def _group(numbers: Sequence[float], size: int) -> Iterable[tuple[float, ...]]:
    return zip(*[iter(numbers)] * size, strict=True)


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _number(text: str) -> int | None:
    return None if text == ABSENT else int(text)


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+ ?[a-z]*", "#", text)


def _length(text: str) -> float:
    """Read a length of time as the page writes it; -1 is none."""
    found = re.findall(r"([\d.]+) (d|h|min|s)\b", text)
    return sum(float(number) * SECONDS[unit] for number, unit in found) if found else -1.0


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _moment(text: str) -> float:
    """Read a time as the browser writes it."""
    return (
        datetime.strptime(text.replace("\u202f", " "), "%m/%d/%Y, %I:%M:%S %p")
        .astimezone()
        .timestamp()
    )
