"""The log of the SideCar stays small, even if the same fault happens again and again."""

from __future__ import annotations

import logging

from dljob_sidecar.living import LONGEST_LINE, MOST_LINES, LogLimit


class Sink(logging.Handler):
    """Records the written lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def make_log(now):
    sink = Sink()
    sink.addFilter(LogLimit(now))
    log = logging.getLogger("dljob_sidecar.tests.own")
    log.propagate = False
    log.handlers[:] = [sink]
    return log, sink.lines


def test_repeated_lines_are_limited_and_counted():
    seconds = 0.0
    log, lines = make_log(lambda: seconds)
    for number in range(MOST_LINES + 500):
        log.warning("refused %d", number)
    assert len(lines) == MOST_LINES
    assert lines[-1] == f"refused {MOST_LINES - 1}"
    seconds = 36.0
    log.warning("once %s", "more")
    assert lines[-1] == "once more (before it 500 lines were left out, as there were too many)"
    log.warning("and again")
    assert len(lines) == MOST_LINES + 1
    # Ten days later the limit is full again, and no larger.
    seconds = 864_000.0
    for _ in range(MOST_LINES + 1):
        log.warning("refused")
    assert len(lines) == 2 * MOST_LINES + 1


def test_long_line_is_cut_and_traceback_kept():
    log, lines = make_log(lambda: 0.0)
    log.warning("%s", "x" * (2 * LONGEST_LINE))
    assert lines == ["x" * LONGEST_LINE]
    try:
        int("no number")
    except ValueError:
        log.exception("it did not succeed")
    assert lines[-1].startswith("it did not succeed\n")
    assert "ValueError: invalid literal" in lines[-1]
