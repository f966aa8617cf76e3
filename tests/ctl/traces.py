"""Traces for Perfetto in Chrome's JSON: what the slices on tracks of GPUs add up to."""

import json
from collections import defaultdict
from typing import Any

Json = dict[str, Any]


def read(trace: bytes) -> tuple[dict[int, str], list[Json]]:
    """Return the names of nodes and GPUs by their number, and the events in the order of time."""
    events = sorted(json.loads(trace)["traceEvents"], key=lambda event: event["ts"])
    names = {
        event.get("tid", event["pid"]): event["args"]["name"]
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    return names, events


def slice_seconds(trace: bytes, category: str = "gpu") -> dict[str, float]:
    """Sum up how long slices of a category last, by their name; those of a track do not overlap."""
    names, events = read(trace)
    over: dict[int, int] = {}
    sums: dict[str, float] = defaultdict(float)
    for event in events:
        if event["ph"] == "X":
            assert event["tid"] in names, "an event on a track that is not described"
            assert event["ts"] >= over.get(event["tid"], 0), "two slices at once on one track"
            over[event["tid"]] = event["ts"] + event["dur"]
            if event["cat"] == category:
                sums[event["name"]] += event["dur"] / 1e6
    return dict(sums)


def arrows(trace: bytes) -> list[tuple[int, int]]:
    """Return the tracks at which each arrow begins and ends."""
    events = read(trace)[1]
    begins, ends = ({e["id"]: e["tid"] for e in events if e["ph"] == kind} for kind in "sf")
    assert begins.keys() == ends.keys()
    return [(begins[number], ends[number]) for number in begins]
