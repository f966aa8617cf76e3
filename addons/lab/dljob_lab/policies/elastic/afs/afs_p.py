"""AFS-P: what AFS does where nothing is known of how long jobs take."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import GUESSES, Assumes, Knowledge
from dljob.core.contract import View
from dljob_lab.policies.elastic.afs.sharing import Draw, Sharing, Terms
from dljob_lab.policies.elastic.afs.turns import TurnTaking


@dataclass(frozen=True, slots=True)
class AfsP(TurnTaking):
    """
    Jobs take turns while they outnumber the GPUs; else the most efficient get more, by lot.

    Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), section 3.3, "Handling
    unknown job lengths". While every job can have a GPU, each further one goes by rule (3), tried
    with either job as the longer one; where it is false both ways, one of the two is taken at
    random. With more jobs than that, each has a unit of time on its least, in the order of how many
    units it had before.

    Speeds that were never measured are overestimated first (section 4.5): each GPU beyond the largest
    number that was measured counts as much as those before, and the share is re-adjusted once
    the speed there is observed. A job of which nothing is measured has at most its fair share.

    Where the text leaves room:

    - "At random" is a lot that each job draws once, from the seed and its name. A lot for every
      comparison would change shares at every event without a cause.
    - The order of the scan is that of :func:`dljob_lab.policies.elastic.afs.sharing.hand_out`, with lots for lengths.
    - CoDDL measures a new job on all smaller shares at once, because there a change takes
      milliseconds. Here it takes a restart, so smaller shares are estimated from observed ones.
    - Of two jobs with the same counter the one that runs comes first, then the one that came first.
      A gang whose least does not fit when its turn comes is passed over until it does.
    """

    name: ClassVar[str] = "afs-p"
    paper: ClassVar[str] = "AFS (NSDI '21) 3.3, 4.4 and 4.5"
    needs: ClassVar[str] = "nothing; it learns speeds, the longest first supposed to be linear"

    overestimate: bool = True
    """True if speeds beyond the measured ones are supposed to be linear; else they are predicted."""

    @property
    def assumes(self) -> Assumes:
        """It uses no lengths; of speeds it supposes more or less, as the option says."""
        beyond = "supposes that beyond the measured numbers of GPUs each GPU adds as much as before"
        return {
            Knowledge.SPEED: "supposes that each GPU adds as much as the first, and gives it no"
            " more than an equal share",
            Knowledge.MEASURED: beyond if self.overestimate else GUESSES,
        }

    def open_sharing(self, view: View) -> Sharing:
        return Sharing(view, packing=self.packing, overestimates=self.overestimate)

    def make_terms(self, view: View) -> Terms:
        return Terms(Draw(view.seed))
