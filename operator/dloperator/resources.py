"""The kinds of objects that the operator deals with."""

from typing import Final

from dloperator import names
from dloperator.apiserver import Resource

DLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
EVENTS: Final = Resource("", "v1", "events", "Event")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIGMAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
