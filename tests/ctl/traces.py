"""Traces for Perfetto in Chrome's JSON: what the slices on tracks of GPUs add up to."""

import json
from collections import defaultdict


def slice_seconds(trace: bytes, category: str = "gpu") -> dict[str, float]:
    """Sum up how long slices of a category last, by their name; those of a track do not overlap."""
    events = json.loads(trace)["traceEvents"]
    described = {event["tid"] for event in events if event["name"] == "thread_name"}
    over: dict[int, int] = {}
    sums: dict[str, float] = defaultdict(float)
    slices = [event for event in events if event["ph"] == "X"]
    for event in sorted(slices, key=lambda event: event["ts"]):
        assert event["tid"] in described, "an event on a track that is not described"
        assert event["ts"] >= over.get(event["tid"], 0), "two slices at once on one track"
        over[event["tid"]] = event["ts"] + event["dur"]
        if event["cat"] == category:
            sums[event["name"]] += event["dur"] / 1e6
    return dict(sums)
