"""Traces for Perfetto, read by Perfetto's own description of them: what the slices on tracks of GPUs add up to."""

from collections import defaultdict
from importlib import import_module
from typing import Any


def read(trace: bytes) -> tuple[dict[int, Any], list[tuple[float, Any]]]:
    """Return the tracks by their number, and the events with their times in seconds."""
    described = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    whole = described.Trace.FromString(trace)
    # Perfetto would keep fields that it does not know; there are none, so the size stays the same.
    whole.DiscardUnknownFields()
    assert whole.ByteSize() == len(trace)
    packets = whole.packet
    tracks = [each.track_descriptor for each in packets if each.HasField("track_descriptor")]
    events = [
        (each.timestamp / 1e9, each.track_event) for each in packets if each.HasField("track_event")
    ]
    return {track.uuid: track for track in tracks}, events


def slice_seconds(trace: bytes, category: str = "gpu") -> dict[str, float]:
    """Sum up how long slices of a category last, by their name; begins and ends have to match."""
    tracks, events = read(trace)
    begun: dict[int, tuple[float, Any]] = {}
    sums: dict[str, float] = defaultdict(float)
    for at, event in events:
        assert event.track_uuid in tracks, "an event on a track that is not described"
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in begun, "two slices at once on one track"
            begun[event.track_uuid] = at, event
        elif event.type == event.TYPE_SLICE_END:
            began_at, begin = begun.pop(event.track_uuid)
            if list(begin.categories) == [category]:
                sums[begin.name] += at - began_at
    assert not begun, "a slice without an end"
    return dict(sums)


def arrows(trace: bytes) -> dict[int, tuple[int, int]]:
    events = [event for _, event in read(trace)[1]]
    begins = {flow: event.track_uuid for event in events for flow in event.flow_ids}
    ends = {flow: event.track_uuid for event in events for flow in event.terminating_flow_ids}
    assert begins.keys() == ends.keys()
    return {number: (begins[number], ends[number]) for number in begins}
