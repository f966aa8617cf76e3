"""
The real Horovod finds its processes by what the SideCar does for it, and adds up over them.

Skipped where it is not: ``scripts/install-horovod .frameworks`` builds it (ten minutes).
"""

from __future__ import annotations

import re

import pytest
from _sidecars import NO_FIELDS

from dlwire.messages import Peer, Phase, Run
from tests.sidecar.drivers import HERE, ROOT, wait_until
from tests.sidecar.sidecars import SideCar

pytestmark = [pytest.mark.processes, pytest.mark.frameworks]

PYTHON = ROOT / ".frameworks" / "horovod" / "bin" / "python"
TOLD = re.compile(r"rank (\d+/\d+) (\d+/\d+) cross (\d+/\d+) sum (\d+)")
OPTIONS = {"framework": "horovod", "processes": "perGpu"}
QUIET = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(tmp_path, token):
    if not PYTHON.exists():
        pytest.skip("Horovod is not installed; `scripts/install-horovod .frameworks` builds it")
    started = []

    def begin(name, options=NO_FIELDS):
        folder = tmp_path / name
        folder.mkdir()
        command = (str(PYTHON), str(HERE / "allreduces.py"), token)
        started.append(
            SideCar(folder, token, *command, options={**OPTIONS, **options}, environment=QUIET)
        )
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()


def wait_told(sidecars, count):
    def look():
        for sidecar in sidecars:
            state = sidecar.state()
            assert state.phase not in {Phase.FAILED, Phase.EXITED}, sidecar.told()
        told = sorted(found for one in sidecars for found in TOLD.findall(one.told()))
        return told if len(told) >= count else None

    return wait_until(look, what=f"the words of {count} processes")


def run_both(sidecars, processes, generation):
    peers = tuple(Peer("127.0.0.1", count) for count in processes)
    for node, sidecar in enumerate(sidecars):
        run = Run(
            epoch=1,
            generation=generation,
            incarnation=sidecar.incarnation,
            gpus=tuple(str(gpu) for gpu in range(processes[node])),
            rank_offset=sum(processes[:node]),
            world_size=sum(processes),
            peers=peers,
            rendezvous_port=20100 + generation,
        )
        assert sidecar.declare(run).status == 200


@pytest.mark.parametrize(
    "options", [{}, {"preload": ["torch", "horovod.torch"]}], ids=["cold", "warm"]
)
def test_it_goes_on_with_another_number_of_processes(start, options):
    sidecar = start("one", options)
    sidecar.wait_ready()
    told = set()
    for generation, processes in enumerate((2, 3, 1), start=1):
        sidecar.run(generation, *map(str, range(processes)), processes=processes)
        total = processes * (processes + 1) // 2
        told |= {
            (f"{rank}/{processes}", f"{rank}/{processes}", "0/1", str(total))
            for rank in range(processes)
        }
        wait_until(lambda: told <= set(wait_told([sidecar], len(told))), what=f"{told}")  # noqa: B023


def test_two_containers_train_as_one(start):
    sidecars = [start("one"), start("two")]
    for sidecar in sidecars:
        sidecar.wait_ready()
    run_both(sidecars, (2, 1), 1)
    assert wait_told(sidecars, 3) == [
        ("0/3", "0/2", "0/2", "6"),
        ("1/3", "1/2", "0/1", "6"),
        ("2/3", "0/1", "1/2", "6"),
    ]
