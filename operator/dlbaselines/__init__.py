"""
Policies for simulations alone: schedulers to compare with, which no controller offers.

:mod:`dlsim.policies` adds them to the policies of controllers. :mod:`.rigid` has those that give each job the GPUs
that it requests, :mod:`.elastic` those that choose how many, and :mod:`.common` what several of them share.
The operator's image does not hold this package.
"""

from collections.abc import Callable, Mapping

from dlbaselines.elastic.afs.afs_p import AfsP
from dlbaselines.elastic.afs.afs_s import AfsS
from dlbaselines.elastic.afs.srsf_e import SrsfE
from dlbaselines.elastic.afs.srtf_e import SrtfE
from dlbaselines.elastic.hdf import HighestDensityFirst
from dlbaselines.elastic.hesrpt import Hesrpt
from dlbaselines.elastic.lyra import Lyra
from dlbaselines.elastic.ones import Ones
from dlbaselines.elastic.optimus_periodic import OptimusPeriodic
from dlbaselines.elastic.sia import Sia
from dlbaselines.elastic.smartfill import SmartFill
from dlbaselines.elastic.themis import Themis
from dlbaselines.rigid.fjf import Fjf
from dlbaselines.rigid.gang_fifo import GangFifo
from dlbaselines.rigid.kube_default import KubeDefault
from dlbaselines.rigid.kube_pods import KubePods
from dlbaselines.rigid.locality import Locality
from dlcore.contract import Policy

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
