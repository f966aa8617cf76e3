"""
Live changes of ``dljob.training`` with real PyTorch, gloo and DistributedDataParallel.

The old PyTorch of `make test-frameworks` destroys its groups; a later one reconfigures them, where
`scripts/install-latest-torch .frameworks` has installed it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.drivers import ROOT, read_state, run_program, wait_until
from tests.sidecar.live_boards import Job, Spares, find_port

INSTALLED = ROOT / ".frameworks"
LENGTH, BATCH = 96, 12
PATH = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}", "OMP_NUM_THREADS": "1"}
LIMIT_SECONDS = 300

pytestmark = [pytest.mark.processes, pytest.mark.frameworks, pytest.mark.timeout(1800)]


def find_python(name: str) -> str:
    python = INSTALLED / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"the PyTorch called {name} is not installed; the head of this file says how")
    return str(python)


@pytest.fixture(scope="module", params=["pytorch", "latest"])
def spares(request):
    with Spares(find_python(request.param), PATH) as made:
        yield made


class Training:
    """A training of :mod:`tests.sidecar.live_ddp`, live or from checkpoint to checkpoint."""

    def __init__(self, folder: Path, spares: Spares, **options: Any) -> None:
        self.folder, self._spares, self._options = folder, spares, options
        folder.mkdir(exist_ok=True)

    def begin(self, homes: list[int], *, seconds: float = 60.0) -> Job:
        environment = {**PATH, "LIVE_DDP": json.dumps(self._options)}
        return Job(
            self.folder,
            [str(self.folder / "live")],
            homes,
            environment=environment,
            seconds=seconds,
            spawn=self._spares,
        )

    def restart(self, sizes: list[tuple[int, int]]) -> None:
        """Train on each size until its last step, from the checkpoint of the one before."""
        checkpoint = self.folder / "checkpoint"
        for size, stop in sizes:
            options = {**self._options, "stop": stop, "save": str(checkpoint), "pace": 0.0}
            if checkpoint.exists():
                options["resume"] = str(checkpoint)
            place = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
            variables = {**place, **meeting, "LIVE_DDP": json.dumps(options)}
            journal = [str(self.folder / "restarted")]
            ranks = [
                self._spares(journal, {**variables, "RANK": str(rank)}) for rank in range(size)
            ]
            assert [rank.wait(LIMIT_SECONDS) for rank in ranks] == [0] * size

    def read(self, name: str) -> dict[int, dict[int, dict[str, Any]]]:
        """Return what each rank wrote about each step."""
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for line in (self.folder / name).read_text().splitlines():
            row = json.loads(line)
            ranks = found.setdefault(row["step"], {})
            assert row["rank"] not in ranks, row
            ranks[row["rank"]] = row
        return found


def check_samples(steps: dict[int, dict[int, dict[str, Any]]]) -> None:
    """Each step was taken by all ranks of its world, and each sample of an epoch once."""
    taken: list[int] = []
    for step in range(1, max(steps) + 1):
        ranks = steps[step]
        assert {row["world"] for row in ranks.values()} == {len(ranks)}
        turns = itertools.zip_longest(*(ranks[rank]["samples"] for rank in range(len(ranks))))
        samples = [sample for turn in turns for sample in turn if sample is not None]
        assert len(samples) == BATCH
        taken += samples
    for begin in range(0, len(taken), LENGTH):
        epoch = taken[begin : begin + LENGTH]
        assert len({*epoch}) == len(epoch)


def draw_members(chance: random.Random, size: int) -> list[int]:
    """Draw the next members: some of the ranks in any order, and newcomers."""
    staying = chance.sample(range(size), chance.randint(1, size))
    newcomers = [-1] * chance.randint(0, 4 - len(staying))
    members = [*staying, *newcomers]
    chance.shuffle(members)
    return members


def compare_with_restarts(folder: Path, spares: Spares, seed: int, *, changes: int = 3) -> None:
    """Go live through drawn sizes, then through the same ones by checkpoints: the losses are equal to the digit."""
    chance = random.Random(seed)
    size = chance.randint(1, 4)
    training = Training(folder, spares, seed=seed, pace=0.01)
    sizes = []
    with training.begin([0] * size) as job:
        job.wait_for_step(2)
        for _ in range(changes):
            members = draw_members(chance, size)
            change = job.change(members)
            sizes.append((size, change.at))
            size = len(members)
            job.wait_for_step(change.at + chance.randint(1, 9))
        last = min(member.told.step for member in job.members)
    sizes.append((size, last))
    training.restart(sizes)
    live, restarted = training.read("live"), training.read("restarted")
    live = {step: ranks for step, ranks in live.items() if step <= last}
    check_samples(live)
    for step in range(1, last + 1):
        assert {rank: row["loss"] for rank, row in live[step].items()} == {
            rank: row["loss"] for rank, row in restarted[step].items()
        }, (seed, step, sizes)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_losses_are_those_of_checkpoint_and_restart(tmp_path, spares, seed):
    compare_with_restarts(tmp_path, spares, seed)


@pytest.mark.long
@pytest.mark.timeout(36_000)
def test_a_hundred_drawn_sequences_lose_no_digit(tmp_path, spares):
    """DLJOB_SEEDS=FIRST:LAST names other ones."""
    first, _, last = os.environ.get("DLJOB_SEEDS", "0:99").partition(":")
    for seed in range(int(first), int(last) + 1):
        compare_with_restarts(tmp_path / str(seed), spares, seed)


def test_ranks_of_two_containers_join_and_leave(tmp_path, spares):
    training = Training(tmp_path, spares, pace=0.01)
    with training.begin([0, 1, 0, 1]) as job:
        job.wait_for_step(2)
        job.try_live()
        for members, homes in (
            ([2, 3], [0, 1]),
            ([0, 1, -1], [0, 1, 1]),
            ([0], [0]),
            ([-1, 0], [1, 0]),
        ):
            change = job.change(members, homes)
            job.wait_for_step(change.at + 4)
        last = min(member.told.step for member in job.members)
    steps = training.read("live")
    check_samples({step: ranks for step, ranks in steps.items() if step <= last})


def test_newcomer_that_hangs_ends_the_start(tmp_path, spares):
    with Training(tmp_path, spares, pace=0.05).begin([0, 0], seconds=5.0) as job:
        job.wait_for_step(2)
        survivors = job.members
        *_, newcomer = job.declare([0, 1, -1])
        wait_until(lambda: newcomer.told.seen or None, what="the newcomer is ready")
        container = job.containers[0]
        # Not while it holds the lock itself: only the SideCar's limit ends that.
        with container.alone():
            os.kill(newcomer.process.pid, signal.SIGSTOP)
            wait_until(lambda: read_state(newcomer.process.pid) == "T", what="it is stopped")
        assert [survivor.process.wait(60) for survivor in survivors] == [1, 1]
        reasons = [(container.folder / f"failed-{slot}").read_text() for slot in (0, 1)]
        assert all(reasons)
        assert [survivor.told.failed for survivor in survivors] == [2, 2]


def test_leaver_that_is_killed_ends_the_start(tmp_path, spares):
    with Training(tmp_path, spares, pace=0.05).begin([0, 0, 0], seconds=5.0) as job:
        job.wait_for_step(2)
        *survivors, leaver = job.members
        os.kill(leaver.process.pid, signal.SIGSTOP)
        job.declare([0, 1])
        leaver.process.kill()
        assert all(survivor.process.wait(60) != 0 for survivor in survivors)


PRIVATE = """
import inspect, torch, torch.distributed as dist
world = dist.distributed_c10d._world
assert {"pg_map", "pg_group_ranks", "group_count"} <= set(dir(world))
assert "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters
assert [*inspect.signature(dist._reconfigure).parameters][:4] == ["uuid", "handles", "group", "timeout"]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
first = dist._get_reconfigure_handle()
dist._reconfigure(1, [first]).wait()
assert dist._get_reconfigure_handle() != first
assert world.pg_group_ranks[dist.group.WORLD] == {0: 0}
"""


def test_private_functions_of_pytorch_are_those_that_are_used():
    done = run_program([find_python("latest"), "-c", PRIVATE], timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr


COMPARE = """
import sys, torch
live, alone = (torch.load(path) for path in sys.argv[1:])
assert live["batches"] == alone["batches"]
weights = [(state.get("sharded") or state)["model"] for state in (live, alone)]
for name, weight in weights[0].items():
    assert torch.allclose(weight, weights[1][name], atol=1e-3), (name, weight, weights[1][name])
"""


@pytest.mark.parametrize("name", ["live", "fsdp2"])
def test_example_learns_over_live_changes_as_it_does_alone(tmp_path, name):
    python, script = find_python("latest"), str(ROOT / "examples" / name / "train.py")
    live, alone = tmp_path / "live", tmp_path / "alone"
    command = [python, script, "--steps=1000000", "--save-every=20", f"--out={live}"]
    with Job(tmp_path, command, [0, 0, 0], environment=PATH) as job:
        job.wait_for_step(5)
        for members in ([2, 1], [1, -1], [-1, 1, 0]):
            change = job.change(members)
            job.wait_for_step(change.at + 25)
    program = "import sys, torch; print(torch.load(sys.argv[1])['batches']['step'])"
    steps = run_program([python, "-c", program, str(live / "latest.pt")], timeout=LIMIT_SECONDS)
    command = [python, script, f"--steps={int(steps.stdout)}", f"--out={alone}"]
    done = run_program(command, timeout=LIMIT_SECONDS, env={**os.environ, **PATH})
    assert done.returncode == 0, done.stderr
    files = [str(folder / "latest.pt") for folder in (live, alone)]
    same = run_program([python, "-c", COMPARE, *files], timeout=LIMIT_SECONDS)
    assert same.returncode == 0, same.stderr
