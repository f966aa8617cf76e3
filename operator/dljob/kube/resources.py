"""The kinds of objects, and their paths in the API."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from dljob.kube import names


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and its place in the API."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Return the path of all objects, of those in a namespace, of one, or of a subresource."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if sub:
            parts.append(sub)
        return "/".join(parts)


DLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace")
NODES: Final = Resource("", "v1", "nodes", "Node")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS: Final = Resource("", "v1", "events", "Event")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIGMAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
FLAVORS: Final = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor")
CLUSTER_QUEUES: Final = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue")
PRIORITY_CLASSES: Final = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass"
)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEVICES: Final = "resource.k8s.io"
"""The group of Dynamic Resource Allocation, whose version depends on the version of Kubernetes."""
DEVICE_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
SLICES: Final = tuple(
    Resource(DEVICES, version, "resourceslices", "ResourceSlice") for version in DEVICE_VERSIONS
)
DEVICE_CLAIMS: Final = tuple(
    Resource(DEVICES, version, "resourceclaims", "ResourceClaim") for version in DEVICE_VERSIONS
)
"""From the newest version to the oldest."""
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)


def selection(labels: str, fields: str) -> dict[str, str]:
    """Return the part of a query that selects objects; empty texts select all."""
    named = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in named.items() if value}
