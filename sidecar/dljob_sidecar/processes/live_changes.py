"""
Changes the members of a running training without ending the processes that stay.

:mod:`dljob_sidecar.processes.supervising` calls it with the decisions of the machine. A live change takes
these steps: the processes that join start while the others train; when they are ready the change becomes
pending on the board (:mod:`dljob_sidecar.processes.live_board`), and the training takes it at one of its
boundaries; the processes that left end; and it is proven that they are gone, as at a release, before
the change counts. A trial takes the same steps with the same members.

Only :mod:`dljob_sidecar.behaviour` decides what follows a failure. This module reports it, and ends
only processes that have left, or that came for a change that is withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from dljob_sidecar.behaviour.events import (
    Awaited,
    Capable,
    Changed,
    ChangeFailed,
    ChangeRefused,
    Event,
    Gathered,
    NotWithdrawn,
    RankEnded,
    Withdrawn,
)
from dljob_sidecar.behaviour.membership import (
    Difference,
    find_difference,
    is_in_name_only,
)
from dljob_sidecar.linux.spawning import Ended
from dljob_sidecar.processes import live_board, ranks
from dljob_sidecar.processes.departing import Departure
from dljob_sidecar.processes.live_board import NOT_AGREED, Board, Boards, Entry, Header
from dljob_sidecar.processes.ranks import RankProcess
from dljob_sidecar.processes.release_proof import MemoryProof
from dljob_sidecar.processes.releasing import Release
from dljob_sidecar.processes.starting import RankStarter
from dljob_sidecar.serving.admitting import Admission, Admitted, Answer
from dljob_wire.messages import Problem, Run, Target
from dljob_wire.training import Training

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.005
"""The time between two looks at the board during a change, and the first one while processes end."""
GETTING_READY_SECONDS = 0.02
"""The same while the processes that join get ready, and the training goes on."""
SLOWEST_LOOK_SECONDS = 0.25
SOON_SECONDS, LATER_SECONDS = 0.5, 5.0
"""The first and the longest time between two looks while the training has not registered."""
MORE_SLOWLY = 1.1


@dataclass
class Move:
    """A live change or a trial that is under way."""

    number: int
    """The generation of the target, or the number of a trial, negative."""
    run: Run
    target: Target
    """The run itself in a trial."""
    difference: Difference
    joining: list[RankProcess] = field(default_factory=list)
    leaving: list[RankProcess] = field(default_factory=list)
    is_pending: bool = False
    is_gathered: bool = False
    is_refused: bool = False
    is_taken_back: bool = False
    has_failed: bool = False
    departure: Departure | None = None
    """The proof that those who left are gone; None before all have joined."""
    late_ends: list[RankEnded] = field(default_factory=list)
    """The ends of processes that ended well right after they had joined."""
    awaited: str = ""

    @property
    def is_trial(self) -> bool:
        return self.number < 0

    @property
    def containers(self) -> int:
        target = self.target
        return max(len(self.run.peers), len(target.peers) if isinstance(target, Run) else 2)

    def has_joined(self, entry: Entry, header: Header) -> bool:
        """Return True if a process is one of the new members."""
        is_member = self.is_trial or entry.joined == self.number
        return is_member and header.at != NOT_AGREED and entry.joined_step == header.at

    @property
    def has_begun(self) -> bool:
        """True if the training may know of the change, here or in another container."""
        return self.is_pending or (len(self.run.peers) > 1 and not self.is_trial)


class LiveChanges:
    """The live changes of one start after the other."""

    def __init__(
        self,
        training: Training,
        starter: RankStarter,
        *,
        boards: Boards,
        admission: Admission,
        memory: MemoryProof,
        make_departure: Callable[..., Departure],
        tell: Callable[[Event], None],
        on_changed: Callable[[Run], None],
    ) -> None:
        """``on_changed`` hears of new members."""
        self._boards = boards
        self._starter = starter
        starter.on_enter, starter.on_refusal = self.enter, self.refuse
        self._seconds = training.longest_live_seconds
        # The change would otherwise time out before its last processes are killed.
        self._grace_seconds = min(training.checkpoint.grace_seconds, self._seconds / 4)
        self._framework = training.framework.value
        self._admission = admission
        self._memory = memory
        self._make_departure = make_departure
        self._tell = tell
        self._on_changed = on_changed
        self._loop = asyncio.get_running_loop()
        self._board: Board | None = None
        self._generation = 0
        """The generation of the present members."""
        self._capable = 0
        self._slots = 0
        self._move: Move | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- a start ----------------------------------------------------------------------------

    def begin_start(self, run: Run, *, joins: bool) -> None:
        """Make the board of a start before its processes."""
        self.end_start()
        if not self._seconds:
            return
        self._board = self._boards.make()
        self._capable = self._slots = 0
        self._generation = run.generation
        if self._board is not None and joins and run.live is not None:
            self._generation = run.live.since
            difference = Difference({}, (), tuple(run.ranks))
            self._move = Move(run.generation, run, run, difference)

    def follow(self) -> None:
        """Watch a start whose processes have all been started."""
        if self._board is None:
            return
        if self._move is None:
            self._watch(SOON_SECONDS)
            return
        self._move.joining = [*self._starter.rank_processes]
        self._announce(self._move)
        self._look_after(LOOK_SECONDS)

    def cancel(self) -> None:
        """Watch nothing any more, because all processes are to end."""
        self._move = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_start(self) -> None:
        self.cancel()
        if self._board is not None:
            self._board.close()
            self._board = None

    def enter(self, rank_process: RankProcess) -> None:
        """Give a process that is about to start its place on the board, and the variables that name it."""
        slot = self._find_slot()
        if self._board is None or slot is None:
            return
        self._board.clear(slot)
        rank_process.slot = slot
        move = self._move
        joins = {} if move is None else {live_board.JOINS: str(move.number)}
        rank_process.environment = {
            **rank_process.environment,
            live_board.FOLDER: str(self._board.folder),
            live_board.SLOT: str(slot),
            live_board.GENERATION: str(self._generation),
            **joins,
        }

    def _find_slot(self) -> int | None:
        """Return a slot that was never used in this start, or else that of a process that is gone."""
        if self._slots < live_board.SLOTS:
            self._slots += 1
            return self._slots - 1
        joining = [] if self._move is None else self._move.joining
        living = [one for one in self._starter.rank_processes if one.is_living]
        used = {one.slot for one in (*living, *joining)}
        return next((slot for slot in range(live_board.SLOTS) if slot not in used), None)

    def _watch(self, seconds: float) -> None:
        """Look now and then how many processes can change live, until all can."""
        self._timer = None
        if self._board is None:
            return
        living = self._starter.living()
        capable = sum(self._board.entry(one.slot).is_capable for one in living if one.slot >= 0)
        if capable != self._capable:
            self._capable = capable
            self._tell(Capable(self._starter.attempt, capable))
        if capable < len(living):
            later = min(seconds * MORE_SLOWLY, LATER_SECONDS)
            self._timer = self._loop.call_later(seconds, self._watch, later)

    # --- what the machine decides -----------------------------------------------------------

    def change(self, run: Run, target: Target) -> None:
        difference = find_difference(run, target)
        assert difference is not None
        self._begin(Move(target.generation, run, target, difference))

    def try_live(self, run: Run, number: int) -> None:
        stays = Difference({rank: rank for rank in run.ranks}, (), ())
        self._begin(Move(-number, run, run, stays))

    def _begin(self, move: Move) -> None:
        self.cancel()
        self._move = move
        members = self._starter.members
        move.leaving = [one for one in members if one.rank in move.difference.leaves]
        if any(one.ended for one in members):
            # The news of the end is on its way.
            self._refuse("a process has ended")
        elif not move.is_trial and is_in_name_only(move.run, move.target):
            # The processes need not know of it: they go on under the generation that they know.
            self.cancel()
            self._tell(Changed(self._starter.attempt))
            self._watch(SOON_SECONDS)
            return
        elif not move.difference.joins:
            self._announce(move)
        else:
            assert isinstance(move.target, Run)
            joins = move.difference.joins
            gpus = [move.target.gpus[rank - move.target.rank_offset] for rank in joins]
            self._admission.ask(
                move.target,
                lambda answer: self._admit(move, answer),
                is_wanted=lambda: move is self._move and not move.is_taken_back,
                empty=gpus,
            )
        self._look_after(LOOK_SECONDS)

    def _admit(self, move: Move, answer: Answer) -> None:
        """Start the processes that join on GPUs that are empty."""
        if isinstance(answer, Problem):
            self._refuse(answer.message)
            return
        self._memory.release = self._memory.release.with_more(answer.release)
        try:
            self._start_joining(move, answer)
        except OSError as error:
            self._refuse(f"{type(error).__name__}: {error}")

    def _start_joining(self, move: Move, admitted: Admitted) -> None:
        assert isinstance(move.target, Run)
        staying = [one for one in self._starter.members if one.rank in move.difference.stays]
        laid_out = ranks.lay_out_joining(
            move.target,
            move.difference.joins,
            taken={one.local_rank for one in staying},
            framework=self._framework,
            names=admitted.names,
        )
        move.joining = [RankProcess(rank) for rank in laid_out]
        for one in move.joining:
            one.is_member = False
            self.enter(one)
        self._announce(move)
        self._starter.start_more(move.joining)

    def withdraw(self) -> None:
        """Take the change back, unless its members may have agreed on a boundary."""
        if self._move is not None:
            self._withdraw(self._move)

    def _withdraw(self, move: Move) -> None:
        if move is not self._move or move.is_taken_back:
            return
        if self._board is None or move.departure is not None:
            self._tell(NotWithdrawn(self._starter.attempt))
            return
        try:
            is_late = move.has_begun and not self._take_back(self._board, move)
        except BlockingIOError:
            # A process holds the lock, for some microseconds unless it was stopped.
            self._loop.call_later(LOOK_SECONDS, self._withdraw, move)
            return
        if is_late:
            self._tell(NotWithdrawn(self._starter.attempt))
            return
        move.is_taken_back = True
        move.departure = self._depart(move.joining, patience_seconds=0.0)
        self._look_after(0.0)

    def _take_back(self, board: Board, move: Move) -> bool:
        """Withdraw a pending change under the lock; return False if it is too late."""
        # Other containers may have agreed already, which this board shows only if all members of before are here.
        if len(move.run.peers) > 1 and not move.is_trial:
            return False
        with board.locked():
            if board.read().at != NOT_AGREED:
                return False
            withdrawn = board.read().withdrawn if move.is_trial else move.number
            board.write(pending=0, withdrawn=withdrawn)
        return True

    # --- following a change -----------------------------------------------------------------

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        move, board = self._move, self._board
        if move is None or board is None:
            return
        # Look again also after an exception, such as for want of a descriptor.
        self._look_after(LOOK_SECONDS if move.is_pending else GETTING_READY_SECONDS)
        if move.departure is not None:
            self._follow_departure(board, move, move.departure)
        elif move.has_failed or move.is_refused:
            return
        elif move.is_pending:
            self._follow_boundary(board, move)
        elif self._are_ready(board, move):
            self._make_pending(board, move)

    def _are_ready(self, board: Board, move: Move) -> bool:
        if len(move.joining) < len(move.difference.joins):
            self._await(move, "its GPUs to be empty")
            return False
        late = [one for one in move.joining if not board.entry(one.slot).capable]
        self._await(move, f"{_name(late)} to be ready" if late else "")
        return not late

    def _make_pending(self, board: Board, move: Move) -> None:
        try:
            with board.locked():
                board.write(pending=move.number, withdrawn=board.read().withdrawn)
        except BlockingIOError:
            return
        move.is_pending = True
        if move.containers == 1:
            self._say_gathered(move)

    def _say_gathered(self, move: Move) -> None:
        if not move.is_gathered and not move.is_trial:
            self._tell(Gathered(self._starter.attempt))
        move.is_gathered = True

    def _follow_boundary(self, board: Board, move: Move) -> None:
        staying = [one for one in self._starter.members if one not in move.leaving]
        # In a container that only joins, the members are the joining processes.
        present = list(dict.fromkeys((*staying, *move.joining)))
        if self._see_failure(board, move, (*present, *move.leaving)):
            return
        header = board.read()
        late = [one for one in present if not move.has_joined(board.entry(one.slot), header)]
        late += [one for one in move.leaving if board.entry(one.slot).joined != -move.number]
        if header.at != NOT_AGREED:
            self._say_gathered(move)
        if late:
            self._await(move, f"{_name(late)} to pass the boundary")
            return
        # Where all leave, their ends are those of the start.
        if isinstance(move.target, Run):
            move.departure = self._depart(move.leaving, patience_seconds=self._grace_seconds)
            self._look_after(0.0)

    def _see_failure(self, board: Board, move: Move, processes: tuple[RankProcess, ...]) -> bool:
        for one in processes:
            if board.entry(one.slot).failed == move.number:
                why = board.read_reason(one.slot) or "it did not say why"
                self._fail(move, f"rank {one.rank}: {why}")
                return True
        return False

    def _follow_departure(self, board: Board, move: Move, departure: Departure) -> None:
        if not departure.look():
            self._look_after(min(LOOK_SECONDS * 2 ** min(departure.looks, 6), SLOWEST_LOOK_SECONDS))
            self._await(move, departure.awaited)
        elif move.is_taken_back:
            self._memory.release = self._without(move.joining, move.run)
            self.cancel()
            self._tell(Withdrawn(self._starter.attempt))
        else:
            self._complete(board, move)

    def _complete(self, board: Board, move: Move) -> None:
        """Make the new members those of the start."""
        header = board.read()
        staying = [one for one in self._starter.members if one not in move.leaving]
        pauses = [board.entry(one.slot).pause_us for one in staying]
        try:
            with board.locked():
                board.write(pending=0, withdrawn=header.withdrawn)
        except BlockingIOError:
            return
        target = move.target
        assert isinstance(target, Run)
        if not move.is_trial:
            self._memory.release = self._without(move.leaving, target)
            self._take_ranks(move, target)
        self._generation = target.generation
        self.cancel()
        pause = max(pauses, default=0) / 1e6
        self._tell(Changed(self._starter.attempt, pause, header.state_bytes))
        for end in move.late_ends:
            self._tell(end)

    def _take_ranks(self, move: Move, target: Run) -> None:
        laid_out = {one.rank: one for one in ranks.lay_out(target, framework=self._framework)}
        for one in move.leaving:
            one.is_member = False
        for one in (*self._starter.members, *move.joining):
            # The local rank stays, as the ordinal of the GPU does.
            one.rank = move.difference.stays.get(one.rank, one.rank) if one.is_member else one.rank
            one.gpus, one.is_member = laid_out[one.rank].gpus, True
            if one.signature is not None and one.output is not None:
                one.signature = one.rank
                one.output.sign(one.rank)
        self._capable = target.processes
        self._on_changed(target)

    def _without(self, gone: list[RankProcess], run: Run) -> Release:
        """Return the base lines of the GPUs of a run, without those whose processes are gone."""
        return self._memory.release.only(run.gpus) if gone else self._memory.release

    # --- hearing ----------------------------------------------------------------------------

    def hear_end(self, rank_process: RankProcess, ended: Ended, end: RankEnded) -> bool:
        """Handle the end of a process; return True if it is part of a live change, and not reported."""
        move, board = self._move, self._board
        if move is None or board is None or rank_process.slot < 0:
            return False
        entry = board.entry(rank_process.slot)
        if move.departure is not None:
            move.departure.hear_end()
            self._look_after(0.0)
        if move.is_taken_back and rank_process in move.joining:
            return True
        if rank_process in move.leaving and entry.joined == -move.number:
            if ended.code != 0:
                log.warning("rank %d ended by %s after it had left", rank_process.rank, ended)
            return isinstance(move.target, Run)
        if move.has_joined(entry, board.read()) and ended.code == 0:
            is_new = rank_process in move.joining
            rank = end.rank if is_new else move.difference.stays[end.rank]
            move.late_ends.append(replace(end, rank=rank))
            return True
        self._see_failure(board, move, (rank_process,))
        if rank_process in move.joining and not rank_process.is_member:
            self._refuse(f"rank {rank_process.rank}, which joins, ended by {ended}")
            return True
        return False

    def refuse(self, why: str) -> None:
        """Handle a process that joins and cannot be started."""
        if self._move is not None:
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        move = self._move
        assert move is not None
        if move.has_begun:
            self._fail(move, why)
        elif not move.is_refused and not move.is_taken_back:
            move.is_refused = True
            self._tell(ChangeRefused(self._starter.attempt, why))
            if move.is_trial:
                self.cancel()

    def _fail(self, move: Move, why: str) -> None:
        if not move.has_failed:
            move.has_failed = True
            self._tell(ChangeFailed(self._starter.attempt, why))

    def _await(self, move: Move, what: str) -> None:
        if move.awaited != what:
            move.awaited = what
            self._tell(Awaited(self._starter.attempt, what))

    # --- parts of a change ------------------------------------------------------------------

    def _depart(self, leaving: list[RankProcess], *, patience_seconds: float) -> Departure:
        gone = [gpu for one in leaving for gpu in one.own_gpus]
        staying = [one for one in self._starter.living() if one not in leaving]
        return self._make_departure(
            leaving,
            staying=staying,
            release=self._memory.release.only(gone),
            patience_seconds=patience_seconds,
            grace_seconds=self._grace_seconds,
        )

    def _announce(self, move: Move) -> None:
        """Write what the processes have to know of the change; it must be there before they look."""
        assert self._board is not None
        try:
            self._board.announce(move.number, self._describe(self._board, move))
        except OSError as error:
            self._refuse(f"the change cannot be announced: {error}")

    def _describe(self, board: Board, move: Move) -> Mapping[str, Any]:
        target, live = move.target, move.target.live
        stays = move.difference.stays
        placed = {stays[one.rank]: one for one in self._starter.members if one.rank in stays}
        placed.update({one.rank: one for one in move.joining})
        members = [*range(move.run.world_size)]
        if live is not None and not move.is_trial:
            members = [*live.members]
        run = target if isinstance(target, Run) else None
        return {
            "generation": target.generation,
            "since": self._generation,
            "members": members,
            "containers": move.containers,
            "store": self._find_store(board, move),
            "batchSize": 0 if run is None else run.batch_size,
            "learningRateFactor": 1.0 if run is None else run.learning_rate_factor,
            "seconds": self._seconds,
            "slots": {str(rank): one.slot for rank, one in placed.items()},
            "localRanks": {str(rank): one.local_rank for rank, one in placed.items()},
        }

    def _find_store(self, board: Board, move: Move) -> Mapping[str, Any]:
        """Return where the new members meet."""
        if move.containers == 1:
            return {"file": str(board.folder / f"store-{move.number}")}
        if isinstance(move.target, Run):
            # The group of the start has taken the first port of its run.
            port = move.target.rendezvous_port + (1 if move.is_trial else 0)
            return {"host": move.target.peers[0].host, "port": port}
        assert move.target.live is not None
        return {"host": move.target.live.host, "port": move.target.live.port}


def _name(processes: list[RankProcess]) -> str:
    return f"rank {', '.join(str(one.rank) for one in processes)}"
