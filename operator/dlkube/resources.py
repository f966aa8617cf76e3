"""The kinds of objects that the operator deals with."""

from typing import Final

from dlkube import names
from dlkube.client import Resource

DLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS: Final = Resource("", "v1", "events", "Event")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIGMAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEVICES: Final = "resource.k8s.io"
"""The group of Dynamic Resource Allocation, whose versions differ by the age of a cluster."""
DEVICE_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
SLICES: Final = tuple(
    Resource(DEVICES, version, "resourceslices", "ResourceSlice") for version in DEVICE_VERSIONS
)
DEVICE_CLAIMS: Final = tuple(
    Resource(DEVICES, version, "resourceclaims", "ResourceClaim") for version in DEVICE_VERSIONS
)
"""Each from the newest version to the oldest one."""
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)
