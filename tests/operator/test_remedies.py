"""The remedies for refused pods, for refusals that concern more than a template."""

import pytest

from dljob.kube.client import Rejected
from dljob.operator.pods.remedies import RefusalKind, find_remedy


@pytest.mark.parametrize(
    ("message", "kind", "part"),
    [
        (
            'pods "a" is forbidden: exceeded quota: lab, requested: pods=1, used: pods=1, limited: 1',
            RefusalKind.QUOTA,
            "ResourceQuota lab raised",
        ),
        (
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
            RefusalKind.ADMISSION,
            "LimitRange",
        ),
        (
            "ValidatingAdmissionPolicy 'house' with binding 'house' denied request: no",
            RefusalKind.ADMISSION,
            "the owner of the ValidatingAdmissionPolicy house",
        ),
        (
            'admission webhook "rules.example.com" denied the request: no',
            RefusalKind.ADMISSION,
            "the owner of the admission webhook rules.example.com",
        ),
        (
            "unable to create new content in namespace lab because it is being terminated",
            RefusalKind.ADMISSION,
            "the namespace lab is about to be deleted",
        ),
        (
            'pods is forbidden: User "system:serviceaccount:home:dljob" cannot create resource "pods"',
            RefusalKind.ADMISSION,
            "account system:serviceaccount:home:dljob given its rights",
        ),
        (
            'Pod "a" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "nowhere"',
            RefusalKind.TEMPLATE,
            "correct spec.template",
        ),
    ],
)
def test_remedy_follows_from_the_refusal(message: str, kind: RefusalKind, part: str):
    refusal = find_remedy(Rejected(403, {"message": message}))
    assert refusal.kind is kind
    assert part in refusal.remedy
