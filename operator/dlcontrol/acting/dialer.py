"""The contract of the part that speaks to SideCars, and the contact of a pod that has no address."""

from dataclasses import replace
from typing import Protocol

from dlcontrol.situation.ports import Address, PodKey
from dlcontrol.situation.scene import NO_CONTACT, Contact
from dlwire.messages import Target


class Dialer(Protocol):
    """The part that sends commands to SideCars."""

    def follow(self, key: PodKey, address: Address) -> None:
        """Speak to the SideCar of this pod from now on, at this address."""

    def forget(self, key: PodKey) -> None:
        """Do not speak to it any more."""

    def declare(self, key: PodKey, target: Target) -> None:
        """Send it this command until it answers; the command replaces all earlier ones."""

    def contact(self, key: PodKey) -> Contact:
        """
        Return what is known of it.

        That never goes back: neither to an earlier version of a state, nor to an earlier
        incarnation. For a SideCar that has not answered yet, it says since when.
        """


class Absence:
    """
    That a pod cannot be dialled.

    The last report is kept: once the pod has ended, it says how the training ended.
    """

    def __init__(self, since: float, last: Contact = NO_CONTACT) -> None:
        self._since = since
        state = last.state
        has_left = state is not None and state.leaving and state.released
        heard = last if has_left else NO_CONTACT
        self._known = NO_CONTACT
        self._shown = replace(heard, reachable=False, since=since, last=state)

    def show(self, known: Contact) -> Contact:
        """Return what is known of its SideCar, marked as unreachable; equal knowledge gives the same object."""
        if known is not self._known:
            self._known, self._shown = known, replace(known, reachable=False, since=self._since)
        return self._shown
