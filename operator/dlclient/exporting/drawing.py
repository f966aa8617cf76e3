"""
A trace for Perfetto while it is drawn: tracks by their names, and events in the order of time.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dlclient.exporting import packets
from dlclient.exporting.packets import Argument, Event

NS = 1_000_000_000

# At one instant a moment within a slice comes before the end of the slice, and the end before the
# begin of the next one: Perfetto ends the slice that began last.
_ORDER = {Event.INSTANT: 0, Event.END: 1, Event.BEGIN: 2, Event.COUNTER: 3}


class Slice(NamedTuple):
    """A span on a track."""

    begin: float
    end: float
    name: str
    category: str
    arguments: Mapping[str, Argument]
    arrows: tuple[int, ...] = ()
    """The arrows that end at its begin."""


class _Written(NamedTuple):
    at: int
    order: int
    packet: bytes


class Drawing:
    """One trace; times are seconds, and the trace begins at ``base``."""

    def __init__(self, base: float) -> None:
        self._base = base
        self._uuids: dict[tuple[str, ...], int] = {}
        self._tracks: list[bytes] = []
        self._events: list[_Written] = []

    def content(self, *, is_epoch: bool) -> bytes:
        """Return the trace; where times count from the epoch, Perfetto shows the time of day."""
        self._events.sort(key=lambda written: written[:2])
        base = round(self._base * NS) if is_epoch else 0
        head = [packets.clock(base)] if base else []
        return b"".join([*head, *self._tracks, *(written.packet for written in self._events)])

    def track(self, *path: str, rank: int = 0, unit: str | None = None) -> int:
        """Return the number of a track; the first call describes the track."""
        known = self._uuids.get(path)
        if known is None:
            # A parent track must be described first.
            parent = self.track(*path[:-1]) if len(path) > 1 else 0
            known = self._uuids[path] = len(self._uuids) + 1
            described = packets.track(known, path[-1], parent=parent, rank=rank or known, unit=unit)
            self._tracks.append(described)
        return known

    def add_slice(self, track: int, drawn: Slice) -> None:
        first, last = self._ns(drawn.begin), self._ns(drawn.end)
        # A slice of length zero would end before it begins.
        if last <= first:
            return
        opening = packets.event(
            first,
            track,
            Event.BEGIN,
            name=drawn.name,
            category=drawn.category,
            arguments=drawn.arguments,
            ends=drawn.arrows,
        )
        self._put(first, Event.BEGIN, packet=opening)
        self._put(last, Event.END, packet=packets.event(last, track, Event.END))

    def add_moment(
        self,
        track: int,
        at: float,
        *,
        name: str,
        category: str = "",
        arguments: Mapping[str, Argument],
        arrows: tuple[int, ...] = (),
    ) -> None:
        """Draw an instant; ``arrows`` begin there."""
        moment = self._ns(at)
        packet = packets.event(
            moment,
            track,
            Event.INSTANT,
            name=name,
            category=category,
            arguments=arguments,
            starts=arrows,
        )
        self._put(moment, Event.INSTANT, packet=packet)

    def count(self, track: int, at: float, value: float) -> None:
        """Draw the value of a counter from a moment on."""
        moment = self._ns(at)
        self._put(moment, Event.COUNTER, packet=packets.count(moment, track, value))

    def _ns(self, at: float) -> int:
        return round(max(0.0, at - self._base) * NS)

    def _put(self, at: int, what: Event, *, packet: bytes) -> None:
        self._events.append(_Written(at, _ORDER[what], packet))
