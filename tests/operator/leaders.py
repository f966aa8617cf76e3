"""What a leader brings to its parts: the calls that mirrors make, and the jobs that it trusts."""

from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.epochs import Term
from dljob.operator.jobs.trusted_jobs import TrustedJobs


class Calls(list[str]):
    """A listener that remembers its calls, but for those that come after every change."""

    def note_change(self) -> None:
        pass

    def note_news(self, *, burst: bool) -> None:
        self.append(f"news, {burst=}")

    def note_job(self, name: Name) -> None:
        self.append(f"job {name}")


def trusting(mirrors: Mirrors) -> TrustedJobs:
    """Return the jobs of the mirrors as a leader trusts them that has written none yet."""

    async def is_over() -> bool:
        return False

    term = Term(10, lambda: True, is_over)
    return TrustedJobs(mirrors, Specs(), term=term, warn=lambda *_: None)
