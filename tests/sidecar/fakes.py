"""Fakes of the parts below the agent."""

from dljob_sidecar.agent import Agent
from dljob_sidecar.behaviour.events import CheckpointDone, Event, Gone, RankEnded, Started
from dljob_sidecar.behaviour.machine import Limits
from dljob_sidecar.diagnosing.tracebacks import LastWords
from dljob_wire.messages import Gpu, Post, Problem, Process, Progress, Run, Target, Warmth
from tests.sidecar.targets import INCARNATION


class FakeSupervisor:
    """Records the demands; the test reports their results."""

    def __init__(self) -> None:
        self.demanded: list[str] = []
        self.prepared: list[int] = []
        self.attempt = 0
        self.run: Run | None = None

    def start(self, run: Run, attempt: int, *, joins: bool = False) -> None:
        self.run, self.attempt = run, attempt
        self.demanded.append(f"{'join' if joins else 'start'} {run.generation}")

    def change(self, run: Run, target: Target) -> None:
        self.demanded.append(f"change {run.generation} to {target.generation}")

    def try_live(self, run: Run, number: int) -> None:
        self.demanded.append(f"try {number} of {run.generation}")

    def withdraw(self) -> None:
        self.demanded.append("withdraw")

    def prepare(self, processes: int) -> None:
        self.prepared.append(processes)

    def checkpoint(self, *, is_trial: bool = False) -> None:
        self.demanded.append("checkpoint and go on" if is_trial else "checkpoint")

    def give_up_checkpoint(self) -> None:
        self.demanded.append("wait no longer")

    def terminate(self) -> None:
        self.demanded.append("terminate")

    def kill(self) -> None:
        self.demanded.append("kill")

    def started(self) -> Event:
        return Started(self.attempt)

    def saved(self) -> Event:
        return CheckpointDone(self.attempt)

    def ended(self, rank: int = 0, *, code: int = 0) -> Event:
        return RankEnded(self.attempt, rank, code)

    def gone(self) -> Event:
        return Gone(self.attempt)


class FakeFacts:
    """Reports the facts that a test gives it."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.given_processes: tuple[Process, ...] = ()
        self.given_problems: tuple[Problem, ...] = ()
        self.given_gpus: tuple[Gpu, ...] = ()
        self.given_words = LastWords()

    def processes(self) -> tuple[Process, ...]:
        return self.given_processes

    def progress(self) -> Progress:
        iterations = [post.iteration for post in self.posts if post.iteration is not None]
        return Progress(iteration=iterations[-1] if iterations else 0)

    def gpus(self) -> tuple[Gpu, ...]:
        return self.given_gpus

    def warmth(self) -> Warmth:
        return Warmth()

    def problems(self) -> tuple[Problem, ...]:
        return self.given_problems

    def last_words(self) -> LastWords:
        return self.given_words

    def post(self, post: Post) -> None:
        self.posts.append(post)


class Container:
    """An agent with nothing real below it; to be made on a running loop."""

    def __init__(self, *, saves: bool = True, tries: bool = False) -> None:
        self.supervisor = FakeSupervisor()
        self.facts = FakeFacts()
        self.agent = Agent(incarnation=INCARNATION, limits=Limits(saves=saves, tries=tries))
        self.agent.begin(self.supervisor, self.facts)
