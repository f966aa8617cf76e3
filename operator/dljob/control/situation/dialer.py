"""The controller's knowledge of each SideCar, and the contract of the part that connects to them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from dljob.control.situation.ports import Address, Entry, PodKey
from dljob.core.model import JobId
from dljob_wire.messages import Run, State, Target


class ForeignEpoch(NamedTuple):
    """A report of a SideCar that the controller does not accept, because only another controller could have caused it."""

    epoch: int
    installation: str = ""

    @property
    def sentence(self) -> str:
        whose = f" of another installation ({self.installation})" if self.installation else ""
        return (
            f"it says that it obeys another controller{whose} in epoch {self.epoch}, and none leads"
        )


@dataclass(frozen=True, slots=True)
class Contact:
    """The controller's knowledge of a SideCar from its answers."""

    state: State | None = None
    """The last answer."""
    reachable: bool = False
    since: float = 0.0
    """When the SideCar became reachable, or unreachable."""
    first_seen: float = 0.0
    """When this incarnation answered first."""
    declared: Target | None = None
    """The last command, of this controller and to this incarnation."""
    overtaken: tuple[Run, ...] = ()
    """The previous command, which may still arrive: a newer command does not recall it."""
    problem: str = ""
    """Why the SideCar cannot be reached, or which command it refuses and why."""
    outdated: bool = False
    """The SideCar listens, but its certificate has expired."""
    foreign: ForeignEpoch | None = None
    """Why the present report is not accepted; ``state`` is the report before."""
    last: State | None = None
    """The last answer before the pod lost its address; the pod may have changed since."""

    @property
    def unanswered(self) -> tuple[Run, ...]:
        """The runs that the SideCar may accept, or have accepted without a report to this controller."""
        state = self.state
        if state is None:
            return ()
        return tuple(
            told
            for told in (*self.overtaken, self.declared)
            if isinstance(told, Run)
            and told.incarnation == state.incarnation
            and told.term > state.term
        )

    @property
    def coming(self) -> tuple[Run, ...]:
        """The runs that may begin in the pod without a further command."""
        target = self.state.target if self.state is not None else None
        if self.state is None or not isinstance(target, Run):
            return self.unanswered
        has_begun = target.generation == self.state.held_generation
        return self.unanswered if has_begun else (target, *self.unanswered)


NO_CONTACT = Contact()


class Dialer(Protocol):
    """The part that sends commands to SideCars."""

    def follow(self, key: PodKey, address: Address) -> None:
        """Connect to the SideCar of this pod at this address from now on."""

    def forget(self, key: PodKey) -> None:
        """Close the connection to the SideCar of this pod."""

    def declare(self, key: PodKey, target: Target) -> None:
        """Send the SideCar this command until it answers; the command replaces all earlier ones."""

    def contact(self, key: PodKey) -> Contact:
        """
        Return what is known of the SideCar.

        The contact never goes back to an earlier version of a state or to an earlier incarnation. For a
        SideCar that has not answered yet, ``since`` is when the controller began to follow it.
        """

    def believe(self, left: State) -> State | None:
        """Return a state that a SideCar left behind; None if an answer with it would not count."""


class _Absence:
    """
    The contact of a pod without an address.

    The last report is kept: once the pod has ended, it says how the training ended.
    """

    def __init__(self, since: float, last: Contact = NO_CONTACT) -> None:
        self._since = since
        state = last.state
        has_left = state is not None and state.leaving and state.released
        kept = last if has_left else NO_CONTACT
        self._known = NO_CONTACT
        self._shown = replace(kept, reachable=False, since=since, last=state)

    def show(self, known: Contact) -> Contact:
        """Return the contact, marked as unreachable; equal knowledge gives the same object."""
        if known is not self._known:
            self._known, self._shown = known, replace(known, reachable=False, since=self._since)
        return self._shown


class Contacts:
    """The contacts of all booked pods; the dialer follows exactly the pods that have an address."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._followed: dict[PodKey, Address] = {}
        self._absent: dict[PodKey, _Absence] = {}

    def follow(
        self, entries: Mapping[JobId, Entry], addresses: Mapping[PodKey, Address], *, now: float
    ) -> None:
        """Connect to these SideCars, and to no others."""
        last: dict[PodKey, Contact] = {}
        for key in self._followed.keys() - addresses.keys():
            last[key] = self._dialer.contact(key)
            self._dialer.forget(key)
        for key, address in addresses.items():
            if self._followed.get(key) != address:
                self._dialer.follow(key, address)
        self._followed = dict(addresses)
        booked = {
            PodKey(job, pod.node) for job, each in entries.items() for pod in each.status.pods
        }
        # While a pod has no address, its silence counts from the cycle that first saw it so.
        self._absent = {
            key: self._absent.get(key) or _Absence(now, last.get(key, NO_CONTACT))
            for key in booked - addresses.keys()
        }

    def believe(self, left: State) -> State | None:
        """Return a state that a SideCar left behind; None if an answer with it would not count."""
        return self._dialer.believe(left)

    def find(self, key: PodKey) -> Contact:
        """Return the contact of a pod; without an address, ``since`` is when the address was missed first."""
        contact, absence = self._dialer.contact(key), self._absent.get(key)
        return contact if absence is None else absence.show(contact)
