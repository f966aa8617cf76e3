"""The work of a comparison: tasks that are played on all cores, and news of how far it is."""

import time
from collections.abc import Sequence

from dljob.cli.output.bars import Bar, progress_bar
from dljob.cli.output.messages import say
from dljob_lab.comparing.journal import Journal
from dljob_lab.comparing.running import Failure, Result, run_tasks
from dljob_lab.comparing.tasks import Task, Values

NEWS_S = 30.0
"""How often a line says how far it is where no person watches a bar."""


class Work:
    """The tasks of a comparison, and what has become of them so far."""

    def __init__(self, tasks: Sequence[Task], journal: Journal | None) -> None:
        self.tasks = tasks
        self.failures: dict[Task, str] = {}
        self._journal = journal
        self._keys = [task.key() if journal is not None else "" for task in tasks]
        self._found: dict[Task, Values] = {}
        for task, key in zip(tasks, self._keys, strict=True):
            values = journal.find(key) if journal is not None else None
            if values is not None:
                self._found[task] = values

    @property
    def results(self) -> dict[Task, Values]:
        """The results so far, in the order of the tasks, not of their completion."""
        return {task: self._found[task] for task in self.tasks if task in self._found}

    def run(self, processes: int) -> bool:
        """Perform what is missing; return whether all of it was done before an interruption."""
        missing = [(i, task) for i, task in enumerate(self.tasks) if task not in self._found]
        if self._found:
            say(f"{len(self._found):,} of {len(self.tasks):,} results exist already")
        with progress_bar() as bar:
            news = News(len(missing), bar)
            try:
                for number, result in run_tasks(missing, processes=processes):
                    self._take(number, result)
                    news.count()
            except KeyboardInterrupt:
                return False
        return True

    def _take(self, number: int, result: Result) -> None:
        task = self.tasks[number]
        if isinstance(result, Failure):
            self.failures[task] = result.message
            return
        self._found[task] = result
        if self._journal is not None:
            self._journal.add(self._keys[number], result)


class News:
    """How far a comparison is: a bar for a person, a line now and then for a log."""

    def __init__(self, total: int, bar: Bar | None) -> None:
        self._total, self._done, self._bar = total, 0, bar
        self._began = self._told = time.monotonic()
        if bar is not None:
            bar.watch("simulations", 0, total)

    def count(self) -> None:
        """Count one more task."""
        self._done += 1
        if self._bar is not None:
            self._bar.watch("simulations", self._done, self._total)
            return
        now = time.monotonic()
        if now - self._told >= NEWS_S and self._done < self._total:
            self._told = now
            left_s = (now - self._began) / self._done * (self._total - self._done)
            say(f"{self._done:,} of {self._total:,} simulations, about {left_s / 60:.0f} min left")
