"""Ranks of a node share an output, with whole lines and a label for each rank."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import defaultdict

import pytest

from dljob_sidecar.diagnosing.tracebacks import Tracebacks
from dljob_sidecar.linux.spawning import Ended, Reaper, start
from dljob_sidecar.observing.matching import strip_rank
from dljob_sidecar.observing.rank_outputs import Outputs
from tests.sidecar.clients import live_through
from tests.sidecar.drivers import LIMIT_SECONDS

WRITER = """
import sys
rank, count, length = map(int, sys.argv[1:])
for number in range(count):
    print(f"{rank}:{number}:" + "x" * length)
print("the end", end="")
"""
SLOW_READER = """
import sys, time
while block := sys.stdin.buffer.read1(1000):
    sys.stdout.buffer.write(block)
    time.sleep(0.0005)
"""
SIGNED = re.compile(rb"rank (\d+) \| (.*)", re.DOTALL)


def collect(sink: int, *, ranks: int, count: int, length: int) -> None:
    """Let processes write concurrently, until all of it is in the sink."""

    async def write() -> None:
        outputs = Outputs((sink, sink), by_rank=True)
        reaper = Reaper()
        ended: list[Ended] = []
        for rank in range(ranks):
            output = outputs.open()
            output.sign(rank)
            out, err = output.descriptors
            command = [sys.executable, "-c", WRITER, *map(str, (rank, count, length))]
            pid = start(command, env=os.environ, stdout=out, stderr=err)
            output.let_go()
            reaper.watch(pid, ended.append)
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(ended) < ranks or outputs.forwarders:
                reaper.reap()
                await asyncio.sleep(0.01)
        outputs.close()

    live_through(write())


def lines_by_rank(text: bytes) -> dict[int, list[bytes]]:
    found = defaultdict(list)
    for line in text.splitlines():
        signed = SIGNED.fullmatch(line)
        assert signed is not None, line[:100]
        found[int(signed[1])].append(signed[2])
    return found


@pytest.mark.processes
@pytest.mark.parametrize("length", [1, pytest.param(3000, marks=pytest.mark.story), 20_000])
def test_lines_of_concurrent_ranks_are_whole_and_labelled(tmp_path, length):
    log = tmp_path / "log"
    with log.open("ab") as file:
        collect(file.fileno(), ranks=3, count=200, length=length)
    for rank, lines in lines_by_rank(log.read_bytes()).items():
        assert lines.pop() == b"the end"
        text = b"".join(lines)
        expected = b"".join(b"%d:%d:%s" % (rank, number, b"x" * length) for number in range(200))
        assert text == expected


@pytest.mark.processes
def test_slow_pipe_reader_gets_whole_lines(tmp_path):
    log = tmp_path / "log"
    source, sink = os.pipe()
    with log.open("wb") as file:
        reader = start(
            [sys.executable, "-c", SLOW_READER], env=os.environ, stdin=source, stdout=file.fileno()
        )
    os.close(source)
    collect(sink, ranks=3, count=300, length=500)
    os.close(sink)
    os.waitpid(reader, 0)
    found = lines_by_rank(log.read_bytes())
    assert {rank: len(lines) for rank, lines in found.items()} == {0: 301, 1: 301, 2: 301}
    assert all(len(line) >= 500 for lines in found.values() for line in lines[:-1])


def test_progress_bar_states_are_lines(tmp_path):
    log = tmp_path / "log"

    async def write() -> None:
        with log.open("ab") as file:
            outputs = Outputs((file.fileno(),) * 2, by_rank=True)
            output = outputs.open()
            output.sign(7)
            inlet = os.dup(output.descriptors[0])
            output.let_go()
            os.write(inlet, b"10%\r20%\r\n\nlast")
            os.close(inlet)
            async with asyncio.timeout(LIMIT_SECONDS):
                while outputs.forwarders:
                    await asyncio.sleep(0.01)

    live_through(write())
    assert log.read_bytes() == b"rank 7 | 10%\rrank 7 | 20%\r\nrank 7 | \nrank 7 | last\n"


def test_rank_label_is_stripped():
    assert strip_rank(b"rank 3 | step 5") == b"step 5"
    assert strip_rank(b"rank 3 | rank 4 | x") == b"rank 4 | x"
    assert strip_rank(b"[rank3] step 5") == b"[rank3] step 5"


def test_exception_belongs_to_its_rank():
    tracebacks = Tracebacks()
    for rank, what in ((1, "ValueError: bad"), (0, "RuntimeError: lost the peer")):
        for line in ("Traceback (most recent call last):", '  File "t.py", line 1', what):
            tracebacks.feed(f"rank {rank} | {line}\n".encode(), 1.0)
    tracebacks.fail(1.0)
    words = tracebacks.last_words()
    assert words.exception_of(0) == "RuntimeError: lost the peer"
    assert words.exception_of(1) == "ValueError: bad"
