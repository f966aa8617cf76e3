"""Live changes of ``dljob.training`` without PyTorch: agreeing, joining, leaving, withdrawing and failing."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob import training
from tests.sidecar.drivers import ROOT
from tests.sidecar.live_boards import Container, Job

OLD, NEWCOMERS = 3, 2


@pytest.fixture(autouse=True)
def unregistered(monkeypatch):
    for name in (
        "RANK",
        "WORLD_SIZE",
        "DLJOB_RANK",
        "DLJOB_LIVE",
        "DLJOB_JOINS",
        "DLJOB_GENERATION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(training._Live, "registered", None)
    monkeypatch.setattr(training._Live, "_found", [])
    monkeypatch.setattr(training, "_agreements", [])


class Counter:
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


# --- without DLJob --------------------------------------------------------------------------


def test_program_without_dljob_is_its_only_rank():
    counter = Counter()
    net = training.live(counter, wrap=lambda wrapped: [wrapped])
    assert net.index(counter) == 0
    assert training.live(counter).value == 0
    assert not training.boundary(1)
    assert training.joined_at(7) == 7
    assert (training.rank(), training.world_size(), training.local_rank()) == (0, 1, 0)


def test_request_is_answered_once_in_a_step(monkeypatch):
    for saves in (
        (training.should_save, training.boundary),
        (training.boundary, training.boundary),
    ):
        monkeypatch.setattr(training._Request, "step", None)
        monkeypatch.setattr(training._Request, "is_open", True)
        first, second = saves
        assert first(1)
        training._Request.is_open = True
        # Within the same step the answer of before holds, and the new request waits for the next step.
        assert not second(1)
        assert second(2)


def test_attribute_of_the_wrapped_model_is_set_on_the_model():
    model = SimpleNamespace(require_backward_grad_sync=True)
    training.live(model).require_backward_grad_sync = False
    assert model.require_backward_grad_sync is False


def test_process_group_without_pytorch_is_refused():
    with pytest.raises(RuntimeError, match="import torch before"):
        training.init_process_group("gloo")


# --- agreeing on the step -------------------------------------------------------------------


@pytest.fixture
def container(tmp_path):
    made = Container(tmp_path / "container")
    yield made
    made.close()


CHANGE = """
{"generation": 2, "since": 1, "members": [1, 2, -1, -1], "containers": 1, "store": {"file": "none"}, "batchSize": 0,
 "learningRateFactor": 1.0, "seconds": 5, "slots": {"0": 1, "1": 2, "2": 3, "3": 4},
 "localRanks": {"0": 0, "1": 1, "2": 2, "3": 3}}
"""


def make_ranks(container: Container) -> list[training._Live]:
    """Return the processes of a start, with those that join it; the caller is all of them."""
    ranks = [training._Live(container.folder, slot) for slot in range(OLD + NEWCOMERS)]
    for rank in ranks[:OLD]:
        rank._write(rank.JOINED, 1)
    (container.folder / "change-2.json").write_text(CHANGE)
    return ranks


@given(order=st.lists(st.integers(0, OLD + NEWCOMERS - 1), max_size=60))
def test_no_rank_passes_the_agreed_step(tmp_path_factory, order):
    container = Container(tmp_path_factory.mktemp("agreeing") / "container")
    ranks = make_ranks(container)
    steps, ready = [5, 3, 4], set()
    container.declare(2)
    # Afterwards all pass in turn, so that each drawn history comes to its end.
    for turn in [*order, *[*range(OLD, OLD + NEWCOMERS), *range(OLD)] * 10]:
        if turn >= OLD:
            if turn not in ready:
                ready.add(turn)
                ranks[turn]._agree(2, 0)
        elif steps[turn] != container.at:
            steps[turn] += 1
            ranks[turn]._write(training._Live.STEP, steps[turn])
            at = ranks[turn]._agree(2, steps[turn])
            assert at < 0 or steps[turn] <= at
            assert at < 0 or len(ready) == NEWCOMERS
    assert steps == [container.at] * OLD
    container.close()


def test_withdrawn_change_is_not_agreed(container):
    ranks = make_ranks(container)
    container.declare(2)
    assert ranks[0]._agree(2, 4) == -1
    container.declare(0, withdrawn=2)
    assert ranks[1]._agree(2, 4) == -1
    assert container.at == -1
    assert not ranks[0].passes(5)


class Exited(BaseException):
    pass


def exit_at_once(code: int) -> None:
    raise Exited(code)


def test_rank_beyond_the_agreed_step_fails_with_a_reason(container, monkeypatch, capfd):
    monkeypatch.setattr(os, "_exit", exit_at_once)
    rank = make_ranks(container)[0]
    container.declare(2, at=6)
    with pytest.raises(Exited):
        rank.passes(7)
    assert container.read(0).failed == 2
    assert "step 6 has passed" in (container.folder / "failed-0").read_text()
    assert "live change 2 failed: RuntimeError: step 6" in capfd.readouterr().err


def test_change_that_takes_too_long_ends_the_process(container, monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    rank = make_ranks(container)[0]
    change = rank._take(2)
    with rank._limited(change._replace(seconds=0.01)):
        while not ended:
            pass
    assert ended == [1]
    assert "longer than 0.01 s" in (container.folder / "failed-0").read_text()


def test_unreadable_change_fails(container, monkeypatch):
    monkeypatch.setattr(os, "_exit", exit_at_once)
    rank = make_ranks(container)[0]
    container.declare(3)
    with pytest.raises(Exited):
        rank.passes(1)
    assert "FileNotFoundError" in (container.folder / "failed-0").read_text()


@pytest.mark.parametrize("content", [b"DLJ9" + bytes(124), b""])
def test_board_that_cannot_be_used_leaves_the_training_as_it_is(
    container, monkeypatch, capsys, content
):
    (container.folder / "board").write_bytes(content)
    monkeypatch.setenv("DLJOB_LIVE", str(container.folder))
    assert training.live(Counter()).value == 0
    assert training.live(Counter()).value == 0
    assert capsys.readouterr().err.count("no live changes") == 1


def test_process_of_a_launcher_takes_no_part(container, monkeypatch):
    monkeypatch.setenv("DLJOB_LIVE", str(container.folder))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    training.live(Counter())
    assert not training.boundary(1)
    assert container.read(0).capable == 0


def test_leaver_that_catches_its_exit_exits_again(container, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "RANK": "0", "DLJOB_RANK": "0"})
    rank = make_ranks(container)[0]
    for other in (1, 2):
        rank._numbers[8 * (other + 1) + rank.SEEN] = 2
    for newcomer in (3, 4):
        rank._numbers[8 * (newcomer + 1) + rank.SEEN] = 2
    rank._sharded = None
    container.declare(2)
    assert not rank.passes(1)
    for step in (2, 3):
        with pytest.raises(SystemExit):
            rank.passes(step)
    assert not training.is_leader()
    assert container.read(0).joined == -2


# --- what is handed over --------------------------------------------------------------------


class Unsent:
    def state_dict(self):
        return {"hook": lambda: None}


def carry_out_trial(rank: training._Live, part: object) -> None:
    change = rank._take(2)._replace(
        number=-1, members=[0], slots={0: 0}, local_ranks={0: 0}, containers=1
    )
    rank._parts, rank._sharded, rank._wrap = (part,), None, None
    rank._wrapped = training._Wrapped(None)
    rank._carry_out(change, step=3, entered=0.0)


@pytest.fixture
def environment(monkeypatch):
    """Put the variables that a change writes back."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "_exit", exit_at_once)


@pytest.mark.usefixtures("environment")
def test_trial_packs_the_state_and_writes_its_size(container):
    rank = make_ranks(container)[0]
    carry_out_trial(rank, Counter())
    assert rank._numbers[rank.STATE] > len(pickle.dumps(random.getstate()))
    assert not list(container.folder.glob("state-*"))


@pytest.mark.usefixtures("environment")
def test_trial_finds_a_state_that_cannot_be_packed(container):
    rank = make_ranks(container)[0]
    with pytest.raises(Exited):
        carry_out_trial(rank, Unsent())
    assert "pickle" in (container.folder / "failed-0").read_text()


@pytest.mark.parametrize(("local", "gpus", "own"), [("1", 4, "cuda:1"), ("2", 1, "cuda:0")])
def test_state_goes_to_the_gpu_of_the_process(monkeypatch, local, gpus, own):
    monkeypatch.setenv("LOCAL_RANK", local)
    tensor = SimpleNamespace(shape=(2,), dtype="float", device=SimpleNamespace(type="cuda"))
    tensor.detach = lambda: SimpleNamespace(contiguous=lambda: tensor)
    packed = io.BytesIO()
    made: list[object] = []
    torch = SimpleNamespace(
        Tensor=None,
        cuda=SimpleNamespace(
            device_count=lambda: gpus,
            is_initialized=lambda: True,
            get_rng_state=made.append,
            set_rng_state=lambda _state, device: made.append(device),
        ),
        empty=lambda _shape, *, device, **_: made.append(device),
        get_rng_state=lambda: None,
        set_rng_state=lambda _: None,
    )
    training._Packer(packed, torch, lambda found: found is tensor).dump([tensor])
    monkeypatch.setitem(sys.modules, "torch", torch)
    training._Unpacker(io.BytesIO(packed.getvalue()), torch).load()
    training._write_random(training._read_random())
    assert made == [own] * 3


class Storage:
    def __init__(self, size: int) -> None:
        self.size = size

    def nbytes(self) -> int:
        return self.size


class Tensor:
    """As PyTorch's, it is pickled with its whole storage."""

    layout = "strided"

    def __init__(self, size: int, storage: int) -> None:
        self.size, self._storage = size, storage

    def storage(self) -> Storage:
        return Storage(self._storage)

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.size, self.size)

    def __reduce_ex__(self, protocol: object) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self._storage),)


@pytest.mark.parametrize("storage", [10, 100000])
def test_view_is_packed_without_the_rest_of_its_storage(storage):
    torch, packed = SimpleNamespace(Tensor=Tensor, strided="strided"), io.BytesIO()
    training._Packer(packed, torch, lambda _: False).dump({"view": Tensor(10, storage)})
    assert training._Unpacker(io.BytesIO(packed.getvalue()), torch).load() == {"view": bytes(10)}


# --- real processes -------------------------------------------------------------------------


class Journal:
    """What the ranks of :mod:`tests.sidecar.live_training` wrote."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[int, dict[int, list[str]]] = {}
        for line in path.read_text().splitlines():
            pid, rank, *rest = line.split()
            ranks = self.steps.setdefault(int(rest[1]), {})
            assert int(rank) not in ranks, line
            ranks[int(rank)] = [pid, *rest]

    def check(self) -> None:
        """Every step was taken once by each rank of its world, with one sum and its samples."""
        taken: list[str] = []
        for step in sorted(self.steps):
            ranks = self.steps[step]
            assert {int(world) for _, world, *_ in ranks.values()} == {len(ranks)}
            assert sorted(ranks) == list(range(len(ranks)))
            assert {int(row[3]) for row in ranks.values()} == {step * (step + 1) // 2}
            # The random numbers of a newcomer are those of the others.
            assert len({row[4] for row in ranks.values()}) == 1
            parts = [ranks[rank][5].split(",") for rank in sorted(ranks)]
            turns = itertools.zip_longest(*parts)
            taken += [sample for turn in turns for sample in turn if sample not in (None, "-")]
        assert all(
            len(set(taken[begin : begin + 10])) == len(taken[begin : begin + 10])
            for begin in range(0, len(taken), 10)
        )


@pytest.fixture
def begin(tmp_path):
    started = []

    def make(ranks: int, *, steps: int = 100_000) -> Job:
        program = ("-m", "tests.sidecar.live_training", str(tmp_path / "journal"))
        command = [sys.executable, *program, str(steps), "0.002"]
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
        started.append(Job(tmp_path, command, [0] * ranks, environment=path))
        return started[-1]

    yield make
    for job in started:
        job.__exit__()


@pytest.mark.processes
@pytest.mark.story
def test_ranks_join_and_leave_while_others_stay(begin, tmp_path):
    job = begin(2)
    job.wait_for_step(2)
    stayed = job.members[1].process.pid
    trial = job.try_live()
    assert len(trial.pauses) == 2
    assert job.change([1]).leavers[0].process.wait() == 0
    job.wait_for_step(job.step + 2)
    grown = job.change([-1, 0, -1], batch_size=5, factor=1.25)
    job.wait_for_step(job.step + 2)
    job.change([1, 2])
    job.wait_for_step(job.step + 2)
    assert job.members[0].process.pid == stayed
    for member in job.members:
        member.process.kill()
    journal = Journal(tmp_path / "journal")
    # Without a collective one rank may have taken steps that the others have not.
    last = min(member.told.step for member in job.members)
    journal.steps = {step: ranks for step, ranks in journal.steps.items() if step <= last}
    journal.check()
    (batch,) = {sum(row[5].count(",") + 1 for row in journal.steps[grown.at + 1].values())}
    assert batch == 5


@pytest.mark.processes
@pytest.mark.story
def test_newcomer_of_a_withdrawn_change_exits(begin):
    job = begin(1)
    job.wait_for_step(2)
    *_, newcomer = job.declare([0, -1])
    if job.withdraw():
        assert newcomer.process.wait(60) == 0
    job.wait_for_step(job.step + 3)


@pytest.mark.processes
@pytest.mark.story
def test_training_that_is_done_ends_although_a_change_is_pending(begin):
    job = begin(1, steps=30)
    job.wait_for_step(2)
    job.declare([0, -1])
    assert job.members[0].process.wait(60) == 0
