"""A leader's parts for tests: the calls of mirrors, and the trusted jobs."""

from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.epochs import Term
from dljob.operator.jobs.trusted_jobs import TrustedJobs


class Calls(list[str]):
    """A listener that records its calls, except those after every change."""

    def note_change(self) -> None:
        pass

    def note_news(self, *, burst: bool) -> None:
        self.append(f"news, {burst=}")

    def note_job(self, name: Name) -> None:
        self.append(f"job {name}")


def trusting(mirrors: Mirrors) -> TrustedJobs:
    """The jobs of the mirrors as trusted by a leader that has written none."""

    async def is_over() -> bool:
        return False

    term = Term(10, lambda: True, is_over)
    return TrustedJobs(mirrors, Specs(), term=term, warn=lambda *_: None)
