"""
A plugin of pytest: no test outlasts its limit, and the runner hears what runs and how it ended.

pytest-timeout ends a test politely, but its timer is gone once the test has failed, and an exception in a background task or a
joined pool can swallow it. So a thread of C (faulthandler's) ends the process :data:`LAST_S` after the limit, with the stacks of
all threads; xdist then names the test, starts another worker and goes on.
"""

import faulthandler
import os
import resource
import signal
from collections.abc import Generator

import pytest

from tests.running import notes

LAST_S = 15.0
"""How long after its limit a test, its fixtures included, is ended with its process."""
LIMITS = {"nodes": 900.0, "cluster": 300.0, "processes": 300.0}
"""By mark, in seconds: they find hangs, and a machine that is ten times slower stays below them."""


class Watch:
    """Limits each test of this process, and reports it."""

    def __init__(self) -> None:
        # The output of pytest itself: that of tests is captured from now on.
        self._stderr = os.dup(2)
        faulthandler.enable(self._stderr)
        faulthandler.register(signal.SIGQUIT, file=self._stderr, all_threads=True)
        self._before = _used()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                limits = [seconds for mark, seconds in LIMITS.items() if mark in item.keywords]
                for seconds in limits[:1]:
                    item.add_marker(pytest.mark.timeout(seconds))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        notes.note_running(item.nodeid)
        self._before = _used()
        seconds = limit_of(item)
        if seconds:
            faulthandler.dump_traceback_later(seconds + LAST_S, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            notes.note_idle()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((CPU, _used() - self._before))
        return report


class Scribe:
    """Writes down the results of all processes, in the first one."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used = sum(float(str(value)) for name, value in report.user_properties if name == CPU)
        text = "" if report.passed else str(report.longreprtext)
        # Of a worker that died xdist makes up a report without a phase.
        phase = str(report.when)
        notes.note_result(
            notes.Result(report.nodeid, phase, report.outcome, report.duration, used, text)
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longreprtext)
            notes.note_result(notes.Result(report.nodeid, "collect", "failed", 0.0, 0.0, text))


CPU = "cpu_s"


def install(config: pytest.Config) -> None:
    """Watch the tests of this process; called when pytest is configured."""
    config.pluginmanager.register(Watch(), "dljob-watch")
    if not hasattr(config, "workerinput") and notes.folder():
        config.pluginmanager.register(Scribe(), "dljob-scribe")


def limit_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getini("timeout") or 0)


def _used() -> float:
    """The processor time of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))
