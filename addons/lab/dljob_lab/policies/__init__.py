"""
Policies for simulations alone: schedulers to compare with, which no controller offers.

:mod:`dljob.sim.policies` adds them to the policies of controllers. :mod:`.rigid` has those that give each job the GPUs
that it requests, :mod:`.elastic` those that choose how many, and :mod:`.common` what several of them share.
The operator's image does not hold this package.
"""

from collections.abc import Callable, Mapping

from dljob.core.contract import Policy
from dljob_lab.policies.elastic.afs.afs_p import AfsP
from dljob_lab.policies.elastic.afs.afs_s import AfsS
from dljob_lab.policies.elastic.afs.srsf_e import SrsfE
from dljob_lab.policies.elastic.afs.srtf_e import SrtfE
from dljob_lab.policies.elastic.hdf import HighestDensityFirst
from dljob_lab.policies.elastic.hesrpt import Hesrpt
from dljob_lab.policies.elastic.lyra import Lyra
from dljob_lab.policies.elastic.ones import Ones
from dljob_lab.policies.elastic.optimus_periodic import OptimusPeriodic
from dljob_lab.policies.elastic.sia import Sia
from dljob_lab.policies.elastic.smartfill import SmartFill
from dljob_lab.policies.elastic.themis import Themis
from dljob_lab.policies.rigid.fjf import Fjf
from dljob_lab.policies.rigid.gang_fifo import GangFifo
from dljob_lab.policies.rigid.kube_default import KubeDefault
from dljob_lab.policies.rigid.kube_pods import KubePods
from dljob_lab.policies.rigid.locality import Locality

BASELINES: Mapping[str, Callable[..., Policy]] = {
    policy.name: policy
    for policy in (
        KubePods,
        KubeDefault,
        Fjf,
        GangFifo,
        Locality,
        OptimusPeriodic,
        SrtfE,
        SrsfE,
        AfsP,
        AfsS,
        SmartFill,
        Hesrpt,
        HighestDensityFirst,
        Lyra,
        Themis,
        Sia,
        Ones,
    )
}
