"""
How GPUs change hands in the simulated world: the paper's GPU Coordinator and what it costs.

:mod:`dljob.sim.engine.world` sets targets and calls :meth:`Coordinator.advance`; from then on the runs find
their way by themselves, each looking only at what it does, what it shall do, and who holds the GPUs in
between. Because every call checks everything again, a target that changes in the middle of a change simply
turns the run around.

Two mechanisms, for every policy:

``in-place``. A newcomer's pods start at once, while its victims still train; only when they are
ready do the victims checkpoint and stop their processes, keep their pods, and start again with
what is left to them. A job that grows goes on training until its new GPUs are free and pods on
new nodes are ready.

A job whose processes stay (``JobState.is_live``) changes in place without a restart, as long as it keeps some of its
GPUs. It gives GPUs up after a pause. For more, newcomers start on them while it trains on; then all of it pauses until
they have joined. A newer target calls newcomers off; a pause that has begun is carried to its end.

``recreate``. A change ends the job's pods and creates new ones, and new pods are created only when
all their GPUs are free, because a device plugin grants devices at the start of a container.
"""

from collections.abc import Callable

from dljob.core.model import GpuRef, Mechanism, NodeName, Placement
from dljob.core.profiles import Costs
from dljob.sim.engine.runs import Activity, Newcomers, Pod, Run
from dljob.sim.engine.training import Training


class Coordinator:
    """
    Brings every run to its target.

    It is long because a step of one run may let the next one go on: all steps change the same holders and claims.
    """

    def __init__(
        self, training: Training, costs_of: Callable[[Run], Costs], *, mechanism: Mechanism
    ) -> None:
        self._training = training
        self._costs_of = costs_of
        self._in_place = mechanism is Mechanism.IN_PLACE
        self._holders: dict[GpuRef, Run] = {}
        self._claims: dict[GpuRef, Run] = {}
        self._touched: dict[Run, None] = {}

    def retarget(self, run: Run, target: Placement | None) -> None:
        """
        Set where the run shall be. Nothing moves before :meth:`settle`, which wants all targets of
        a plan to be known, so that it sees who waits for whose GPUs.
        """
        self._touch(run)
        if run.target is not None:
            for ref in run.target.refs():
                if self._claims.get(ref) is run:
                    del self._claims[ref]
                # A run that held back its stop for this run no longer has to.
                self._touch(self._holders.get(ref))
        run.target = target
        if self._in_place:
            # Pods that were created in advance for a change that is called off go.
            joined = run.newcomers.target if run.newcomers is not None else None
            places = [place for place in (target, run.serving, joined) if place is not None]
            wanted = {node for place in places for node in place.nodes}
            run.pods = {node: pod for node, pod in run.pods.items() if node in wanted}
        if target is not None:
            self._claims.update(dict.fromkeys(target.refs(), run))

    def restart(self, run: Run) -> None:
        """Let a run that trains where it shall be go on there with another batch: its processes stay, or start again."""
        if run.state.is_live:
            self._pause(run, self._costs_of(run).live_change(joins=False))
        else:
            self._stop(run, saves=True)

    def settle(self) -> None:
        """Move all runs that the new targets concern."""
        touched, self._touched = self._touched, {}
        for run in touched:
            self.advance(run)

    def finish(self, run: Run) -> None:
        """The run's training is over: its process saves a last time and ends by itself."""
        self.retarget(run, None)
        self._stop(run, saves=True)
        self._touched.pop(run, None)

    def _touch(self, run: Run | None) -> None:
        if run is not None:
            self._touched[run] = None

    def advance(self, run: Run) -> None:
        """Let the run take the next step towards its target, if there is one to take now."""
        if run.activity is Activity.TRAINING:
            if run.newcomers is not None and run.newcomers.target != run.target:
                self._call_off(run, run.newcomers)
            elif run.target != run.serving:
                self._prepare_pods(run)
                if _may_change_live(run):
                    self._change_live(run)
                elif self._may_stop(run):
                    self._stop(run, saves=True)
        elif run.activity is Activity.STARTING:
            if run.target != run.serving:
                # It has done nothing yet that a checkpoint would save.
                self._stop(run, saves=False)
        elif run.activity is Activity.DOWN:
            if self._has_wrong_pods(run):
                self._end_process(run, self._costs_of(run).pod_termination)
            else:
                self._rise(run)

    # Stopping.

    def _may_stop(self, run: Run) -> bool:
        """Return whether the moment has come to interrupt a training process for a change."""
        if not self._in_place:
            return True  # Pods are deleted at once; the new ones wait for their GPUs.
        target = set(run.target.refs()) if run.target is not None else set()
        lost = run.holds - target
        claimants = {c for ref in lost if (c := self._claims.get(ref)) and c is not run}
        if claimants:
            return all(claimant.pods_ready for claimant in claimants)
        if run.target is None:
            return True
        return run.pods_ready and not any(ref in self._holders for ref in target - run.holds)

    def _stop(self, run: Run, *, saves: bool) -> None:
        costs = self._costs_of(run)
        if run.activity is Activity.TRAINING:
            self._training.training_halts(run, saves=saves)
        delay = costs.process_stop if saves else costs.process_termination
        self._end_process(run, delay if self._in_place else delay + costs.pod_termination)

    def kill(self, run: Run, *, pause: float = 0.0) -> None:
        """
        End what is left of the run after one of its nodes died or it crashed: its processes on other
        nodes hang in a collective, and nothing can be saved. It starts again after a pause at the earliest.
        """
        costs = self._costs_of(run)
        delay = costs.process_termination + pause
        self._end_process(run, delay if self._in_place else delay + costs.pod_termination)

    def _end_process(self, run: Run, delay: float) -> None:
        """Let the run's process be gone after ``delay``, in any state, and newcomers with it."""
        run.activity = Activity.STOPPING
        run.newcomers = None
        run.stamp += 1
        stamp = run.stamp
        if not self._in_place:
            self._drop_pods(run)

        def be_gone() -> None:
            if run.stamp == stamp:
                run.activity = Activity.DOWN
                run.serving = None
                self._training.process_gone(run)
                self.advance(run)

        self._training.later(delay, be_gone)

    # Live changes.

    def _change_live(self, run: Run) -> None:
        """Take the next step of a change through which the run's processes live."""
        assert run.target is not None
        if run.newcomers is not None:
            return  # They start.
        target = set(run.target.refs())
        gains = target - run.holds
        if not gains:
            if self._may_stop(run):
                self._pause(run, self._costs_of(run).live_change(joins=False))
        elif any(ref in self._holders for ref in gains):
            # Others may wait for the GPUs that it gives up, and it for theirs: only a stop frees these at once.
            if not run.holds <= target and self._may_stop(run):
                self._stop(run, saves=True)
        elif run.pods_ready:
            self._start_newcomers(run, gains)

    def _start_newcomers(self, run: Run, gains: set[GpuRef]) -> None:
        assert run.target is not None
        self._take(run, gains)
        newcomers = run.newcomers = Newcomers(run.target, gains)
        costs = self._costs_of(run)

        def join() -> None:
            if run.newcomers is newcomers and not newcomers.are_called_off:
                self._pause(run, costs.live_change(joins=True))

        self._training.later(costs.process_start(run.target.gpus), join)

    def _call_off(self, run: Run, newcomers: Newcomers) -> None:
        """End the newcomers of a change that is overtaken; only then the run takes its next step."""
        if newcomers.are_called_off:
            return
        newcomers.are_called_off = True

        def be_gone() -> None:
            if run.newcomers is newcomers:
                run.newcomers = None
                self._release(run, newcomers.gpus & run.holds)
                self.advance(run)

        self._training.later(self._costs_of(run).process_termination, be_gone)

    def _pause(self, run: Run, seconds: float) -> None:
        """Let all processes of the run stand still, and those of its target go on."""
        assert run.target is not None
        target, newcomers = run.target, run.newcomers
        run.activity = Activity.CHANGING
        run.stamp += 1
        stamp = run.stamp
        self._training.training_pauses(run)

        def go_on() -> None:
            if run.stamp != stamp:
                return
            run.activity, run.serving, run.newcomers = Activity.TRAINING, target, None
            nodes = {*target.nodes, *(run.target.nodes if run.target is not None else ())}
            run.pods = {node: pod for node, pod in run.pods.items() if node in nodes}
            joins = newcomers is not None and not newcomers.are_called_off
            self._training.training_goes_on(run, pause_s=seconds, joins=joins)
            self._release(run, run.holds - set(target.refs()))
            self.advance(run)

        self._training.later(seconds, go_on)

    # Starting.

    def _rise(self, run: Run) -> None:
        """From a process that is gone to one that starts, as far as possible now."""
        target = set(run.target.refs()) if run.target is not None else set()
        self._release(run, run.holds - target)
        if run.target is None:
            self._drop_pods(run)
            return
        self._take(run, {ref for ref in target - run.holds if ref not in self._holders})
        has_all = len(run.holds) == len(target)
        if self._in_place or has_all:
            self._prepare_pods(run)
        # Pods that cost nothing are ready at once, and the run may have moved on meanwhile.
        if run.activity is Activity.DOWN and has_all and run.pods_ready and run.gang_complete:
            self._start(run)

    def _start(self, run: Run) -> None:
        assert run.target is not None
        run.activity = Activity.STARTING
        run.serving = run.target
        run.pods = {node: run.pods[node] for node in run.target.nodes}
        run.stamp += 1
        stamp = run.stamp
        self._training.process_starts(run)

        def train() -> None:
            if run.stamp == stamp:
                run.activity = Activity.TRAINING
                self._training.training_starts(run)

        self._training.later(self._costs_of(run).process_start(run.target.gpus), train)

    def _prepare_pods(self, run: Run) -> None:
        """Create the pods that the target needs and the run does not have yet."""
        if run.target is None or (run.activity is Activity.TRAINING and not self._in_place):
            return
        created = {node: Pod() for node in run.target.nodes if node not in run.pods}
        if not created:
            return
        run.pods.update(created)
        run.granted = run.target

        def be_ready() -> None:
            if any(run.pods.get(node) is pod for node, pod in created.items()):
                for pod in created.values():
                    pod.ready = True
                self._be_initialized(run)

        self._training.later(self._costs_of(run).pod_start(run.target.gpus), be_ready)

    def _be_initialized(self, run: Run) -> None:
        """The paper's early initialisation ends: the victims may get the command to stop."""
        self.advance(run)
        if run.target is not None and run.pods_ready:
            refs = run.target.refs()
            for holder in dict.fromkeys(self._holders.get(ref) for ref in refs):
                if holder is not None and holder is not run:
                    self.advance(holder)

    def _drop_pods(self, run: Run) -> None:
        run.pods = {}
        run.granted = None

    def _has_wrong_pods(self, run: Run) -> bool:
        """Return whether pods were created with GPUs that are not those they shall have by now."""
        if self._in_place or not run.pods or run.granted == run.target:
            return False
        if run.granted is None or run.target is None or run.state.gang == 0:
            return True
        # A gang that is started piece by piece has a pod a GPU, and more of them do no harm.
        return not set(run.granted.refs()) <= set(run.target.refs())

    # Which run has which GPUs.

    def _take(self, run: Run, free: set[GpuRef]) -> None:
        self._holders.update(dict.fromkeys(free, run))
        run.holds |= free
        self._training.held_changes(len(free))

    def _release(self, run: Run, refs: set[GpuRef]) -> None:
        if not refs:
            return
        for ref in refs:
            del self._holders[ref]
        run.holds -= refs
        self._training.held_changes(-len(refs))
        for claimant in dict.fromkeys(self._claims.get(ref) for ref in sorted(refs)):
            if claimant is not None and claimant is not run:
                self.advance(claimant)

    def lose_node(self, run: Run, node: NodeName) -> None:
        """Free the run's GPUs on a node that died; its pod there is gone."""
        gone = {ref for ref in run.holds if ref.node == node}
        for ref in gone:
            del self._holders[ref]
        run.holds -= gone
        self._training.held_changes(-len(gone))
        run.pods.pop(node, None)


def _may_change_live(run: Run) -> bool:
    """Return whether the run's processes live through a change to its target, because it keeps some of its GPUs."""
    target, serving = run.target, run.serving
    return (
        run.state.is_live
        and target is not None
        and serving is not None
        and target.gpu_type == serving.gpu_type
        and not set(target.refs()).isdisjoint(serving.refs())
    )
