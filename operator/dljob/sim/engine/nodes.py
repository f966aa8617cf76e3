"""The nodes of a world: which of them are alive, and the consequences when one fails or comes back."""

from dljob.core.model import Cluster, NodeName
from dljob.sim.engine.books import Books
from dljob.sim.engine.checkpoints import Checkpoints
from dljob.sim.engine.controlling.coordinator import Coordinator
from dljob.sim.engine.controlling.rounds import Rounds
from dljob.sim.engine.controlling.steps import Steps
from dljob.sim.engine.runs import Activity, Run
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.training import Training
from dljob.sim.results.records import Happening


class Nodes:
    """All nodes of one world."""

    def __init__(
        self,
        setting: Setting,
        books: Books,
        *,
        rounds: Rounds,
        checkpoints: Checkpoints,
        training: Training,
        coordinator: Coordinator,
        steps: Steps,
    ) -> None:
        self.whole = Cluster(setting.nodes)
        """The cluster without failures."""
        self.cluster = self.whole
        """The nodes that are alive."""
        self._all = {node.name: node for node in setting.nodes}
        self._alive = dict(self._all)
        self._books = books
        self._rounds = rounds
        self._checkpoints = checkpoints
        self._training = training
        self._coordinator = coordinator
        self._steps = steps

    def lose(self, name: NodeName) -> None:
        """A node fails, and with it the processes and pods on it."""
        if name not in self._alive:
            return
        del self._alive[name]
        self.cluster = Cluster(self._alive.values())
        self._books.journal.note_node(name, reason="the node was lost")
        concerned = [run for run in self._books.runs.values() if not run.finished or run.holds]
        # All targets change before any run moves, so that none starts on the node that is gone.
        broken = [run for run in concerned if self._break_down(run, name)]
        for run in broken:
            self._coordinator.kill(run)
        self._coordinator.settle()
        self._rounds.ask()

    def _break_down(self, run: Run, node: NodeName) -> bool:
        """Take a dead node from the run; return whether its process dies with it."""
        dies = run.works and run.serving is not None and node in run.serving.nodes
        if dies and run.activity is Activity.TRAINING:
            self._checkpoints.fall_back(run)
            self._training.training_halts(run, saves=False)
        self._coordinator.lose_node(run, node)
        if run.target is not None and node in run.target.nodes:
            self._steps.take_all(run, Happening.LOST)
        return dies

    def regain(self, name: NodeName) -> None:
        """A node that failed is back."""
        if name in self._alive:
            return
        self._alive[name] = self._all[name]
        self.cluster = Cluster(self._alive.values())
        self._books.journal.note_node(name)
        self._rounds.ask()
