"""The remedies for a pod that is refused, for the refusals that need more than a template."""

import pytest

from dlkube.client import Rejected
from dloperator.pods.remedies import Refuser, find_remedy


@pytest.mark.parametrize(
    ("message", "refuser", "part"),
    [
        (
            'pods "a" is forbidden: exceeded quota: lab, requested: pods=1, used: pods=1, limited: 1',
            Refuser.QUOTA,
            "ResourceQuota lab raised",
        ),
        (
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            Refuser.ADMISSION,
            "LimitRange",
        ),
        (
            "ValidatingAdmissionPolicy 'house' with binding 'house' denied request: no",
            Refuser.ADMISSION,
            "the owner of the ValidatingAdmissionPolicy house",
        ),
        (
            'admission webhook "rules.example.com" denied the request: no',
            Refuser.ADMISSION,
            "the owner of the admission webhook rules.example.com",
        ),
        (
            "unable to create new content in namespace lab because it is being terminated",
            Refuser.ADMISSION,
            "the namespace lab is about to be deleted",
        ),
        (
            'pods is forbidden: User "system:serviceaccount:home:dljob" cannot create resource "pods"',
            Refuser.ADMISSION,
            "account system:serviceaccount:home:dljob given its rights",
        ),
        (
            'Pod "a" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "nowhere"',
            Refuser.TEMPLATE,
            "correct spec.template",
        ),
    ],
)
def test_the_remedy_follows_from_who_refuses(message: str, refuser: Refuser, part: str):
    refusal = find_remedy(Rejected(403, {"message": message}))
    assert refusal.refuser is refuser
    assert part in refusal.remedy
