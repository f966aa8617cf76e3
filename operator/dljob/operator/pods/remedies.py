"""
The remedy for a pod that the API server refuses; it depends on the part of the server that refuses it.

Most often the template is wrong. But admission also refuses correct templates, because of a quota, a policy, or a
missing object; advice to correct the template would then be wrong. No field of the answer names the cause, so
this module recognises the messages of admission; any other refusal counts as an error of the template.

Pure.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from dljob.kube.client import Rejected


class RefusalKind(StrEnum):
    """The part of the API server that refuses a pod."""

    TEMPLATE = "template"
    QUOTA = "quota"
    """A quota is exceeded; the pod itself is correct."""
    ADMISSION = "admission"
    """A rule or object of an administrator."""
    UNKNOWN_FIELD = "unknown field"
    """A field that no pod has, which Kubernetes would drop."""


class _Known(NamedTuple):
    words: str
    """A regular expression, whose groups the remedy may use."""
    kind: RefusalKind
    remedy: str


_KNOWN: Final = (
    _Known(
        r"strict decoding error",
        RefusalKind.UNKNOWN_FIELD,
        "correct these names in spec.template or remove them, because Kubernetes would drop the fields in silence",
    ),
    _Known(
        r"exceeded quota: ([^,\s]+)",
        RefusalKind.QUOTA,
        "wait until other jobs of the namespace are done, ask for less in spec.template, or have the"
        " ResourceQuota {} raised; it is tried again by itself",
    ),
    _Known(
        r"failed quota: ([^:\s]+): must specify",
        RefusalKind.TEMPLATE,
        "name these in resources of each container of spec.template, because the ResourceQuota {}"
        " counts them",
    ),
    _Known(
        r"(?:maximum|minimum) \S+ usage per (?:Container|Pod)|max limit to request ratio per",
        RefusalKind.ADMISSION,
        "request in resources of spec.template only amounts that the LimitRange of the namespace allows"
        " (kubectl describe limitrange), or have it changed",
    ),
    _Known(
        r'violates PodSecurity "([^"]+)"',
        RefusalKind.ADMISSION,
        "set in spec.template what it names, or have the namespace labelled for pods that need more"
        " (it is labelled {})",
    ),
    _Known(
        r"ValidatingAdmissionPolicy '([^']+)'",
        RefusalKind.ADMISSION,
        "do in spec.template what it asks for, or ask the owner of the ValidatingAdmissionPolicy {}",
    ),
    _Known(
        r'admission webhook "([^"]+)" denied',
        RefusalKind.ADMISSION,
        "do in spec.template what it asks for, or ask the owner of the admission webhook {}",
    ),
    _Known(
        r'serviceaccount "([^"]+)" not found',
        RefusalKind.ADMISSION,
        "create the service account {} in this namespace, or name another one in"
        " spec.template.spec.serviceAccountName",
    ),
    _Known(
        r"no PriorityClass with name (\S+) was found",
        RefusalKind.ADMISSION,
        "have the PriorityClass {} created, or name another one in"
        " spec.template.spec.priorityClassName",
    ),
    _Known(
        r'RuntimeClass "([^"]+)" not found',
        RefusalKind.ADMISSION,
        "have the RuntimeClass {} created, or name another one in"
        " spec.template.spec.runtimeClassName or in the operator's setting pods.runtimeClass",
    ),
    _Known(
        r"namespace (\S+) because it is being terminated",
        RefusalKind.ADMISSION,
        "the namespace {} is about to be deleted; submit the job in another one",
    ),
    _Known(
        r'User "([^"]+)" cannot create resource "pods"',
        RefusalKind.ADMISSION,
        "have the operator's account {} given its rights in this namespace (manifests/install)",
    ),
)


class Refusal(NamedTuple):
    """The kind of a refusal, and its remedy."""

    kind: RefusalKind
    remedy: str


def find_remedy(error: Rejected) -> Refusal:
    """Return the kind and the remedy of a refusal."""
    message = str(error)
    for known in _KNOWN:
        found = re.search(known.words, message)
        if found is not None:
            return Refusal(known.kind, known.remedy.format(*found.groups()))
    return Refusal(RefusalKind.TEMPLATE, "correct spec.template")
