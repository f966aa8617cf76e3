"""One pod that is booked: where its files are, and what they say of it."""

import os

from dlcontrol.situation.ports import Entry, PodKey
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dllocal.folders import Folders
from dllocal.pods.pod_folders import PodFolder, find_sidecars


class BookedPod:
    """Reads what is on the disk and in the kernel's list of processes, and changes nothing."""

    def __init__(self, folders: Folders, job: JobId, booking: Booking) -> None:
        self.key = PodKey(job, booking.node)
        self.booking = booking
        self.folder = PodFolder(folders.pod(self.key, booking.serial))
        self.socket = folders.pod_socket(self.key, booking.serial)
        self.log = folders.sidecar_log(self.key, booking.serial)

    @property
    def name(self) -> tuple[PodKey, int]:
        """A key that no other pod has, also none that the job had on this node before."""
        return self.key, self.booking.serial

    @property
    def was_launched(self) -> bool:
        return self.folder.was_launched

    @property
    def has_ever_been_up(self) -> bool:
        """Whether it came so far as to hold its lock; before that it cannot have received a command."""
        return os.path.lexists(f"{self.socket}.lock")

    def pids(self) -> list[int]:
        """The process that was started, if it still is that one."""
        noted = self.folder.process()
        # The controller that started it may have been killed before it could note that.
        return [noted] if noted else find_sidecars(self.socket)


def pods_of(folders: Folders, entry: Entry) -> list[BookedPod]:
    """Return the pods that are booked for a job."""
    return [BookedPod(folders, entry.job.id, booking) for booking in entry.status.pods]
