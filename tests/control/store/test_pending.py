from dljob.core.model import JobId, NodeName
from dljob.store.notebook.pending import (
    Dropped,
    Fold,
    KeepState,
    PendingWrites,
    Record,
    ShowGpus,
    ShowJobs,
    Write,
)
from dljob.store.tables import GpuRow, JobRow
from tests.control.store.places import KIND, OTHER, make_entry, speed_seen

ONE, TWO, THREE = (speed_seen(float(speed)) for speed in (1, 2, 3))


def make_pending(*, most: int = 100, most_at_once: int = 10) -> PendingWrites:
    return PendingWrites(writer="me", most=most, most_at_once=most_at_once)


def drained(pending: PendingWrites) -> list[Write]:
    writes = []
    while (write := pending.take()) is not None:
        writes.append(write)
        pending.finish()
    return writes


def test_long_queue_is_split_under_tickets():
    pending = make_pending(most_at_once=2)
    for _ in range(5):
        pending.observe(KIND, ONE)
    folds = [write for write in drained(pending) if isinstance(write, Fold)]
    assert [len(fold.observations) for fold in folds] == [2, 2, 1]
    assert [fold.ticket.number for fold in folds] == [1, 2, 3]


def test_each_kind_has_its_turn():
    pending = make_pending(most_at_once=1)
    for at in range(2):
        pending.observe(KIND, ONE)
        pending.record([make_entry("a", float(at))])
    pending.show_gpus(())
    pending.show_jobs(())
    pending.keep_state("ones", {"decisions": 1})
    pending.keep_state("ones", {"decisions": 2})
    kinds = [type(write) for write in drained(pending)]
    assert kinds == [Fold, Record, ShowGpus, ShowJobs, KeepState, Fold, Record]


def test_only_the_latest_table_waits():
    pending = make_pending()
    gpus = [(GpuRow(node=NodeName("n1"), gpu=number),) for number in range(3)]
    for rows in gpus:
        pending.show_gpus(rows)
    pending.show_jobs((JobRow(job=JobId("a")),))
    assert drained(pending) == [ShowGpus(gpus[-1]), ShowJobs((JobRow(job=JobId("a")),))]


def test_oldest_history_is_dropped_first():
    pending = make_pending(most=4)
    pending.record([make_entry("a", float(at)) for at in range(3)])
    for seen in (ONE, TWO, THREE):
        pending.observe(KIND, seen)
    assert len(pending) == 4
    assert pending.dropped == Dropped(entries=2)
    fold, record = drained(pending)
    assert isinstance(fold, Fold)
    assert fold.observations == (ONE, TWO, THREE)
    assert isinstance(record, Record)
    assert [entry.at for entry in record.rows] == [2.0]


def test_oldest_observations_are_dropped_next():
    pending = make_pending(most=2)
    pending.observe(OTHER, ONE)
    pending.observe(KIND, ONE)
    pending.observe(KIND, TWO)
    pending.observe(KIND, THREE)
    assert pending.dropped == Dropped(observations=2)
    assert pending.waiting(OTHER) == ()
    assert pending.waiting(KIND) == (TWO, THREE)


def test_write_under_way_never_changes():
    pending = make_pending(most=2)
    pending.observe(KIND, ONE)
    pending.observe(KIND, TWO)
    under_way = pending.take()
    pending.observe(KIND, THREE)
    assert pending.under_way is under_way
    assert len(pending) == 2
    assert pending.dropped == Dropped(observations=1)
