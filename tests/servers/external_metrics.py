"""An adapter of external metrics for a control plane, which knows one number; KEDA and Prometheus' adapter are others."""

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.answering import answering
from tests.servers.controlplane import ControlPlane

VERSION = "external.metrics.k8s.io/v1beta1"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME = "v1beta1.external.metrics.k8s.io"


class Metric:
    """The number, which a test changes at any time."""

    def __init__(self, value: int) -> None:
        self.value = value

    def answer(self, _method: str, path: str, _headers: object) -> tuple[int, bytes]:
        below = path.partition("?")[0].removeprefix(f"/apis/{VERSION}").strip("/").split("/")
        if not path.startswith(f"/apis/{VERSION}"):
            return 404, b""
        if len(below) < 3:
            resources = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION}
            return 200, json.dumps(resources).encode()
        item = {"metricName": below[2], "metricLabels": {}, "value": str(self.value)}
        items = [item | {"timestamp": "2026-01-01T00:00:00Z"}]
        kind = {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "metadata": {}}
        return 200, json.dumps(kind | {"items": items}).encode()


@contextmanager
def served_metric(plane: ControlPlane, namespace: str, folder: Path) -> Iterator[Metric]:
    """Serve a metric to the API server, which serves it to autoscalers."""
    metric = Metric(1)
    # The API server asks for this name, at the address to which the Service leads.
    certificate = plane.authority.issue_server(f"metrics.{namespace}.svc")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate.write(folder, "metrics"))
    with answering(metric.answer, tls=context) as port, plane.api() as api:
        service = {"type": "ExternalName", "externalName": "localhost"}
        registration = {
            "service": {"name": "metrics", "namespace": namespace, "port": port},
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "caBundle": base64.b64encode(plane.authority.certificate).decode(),
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        }
        metadata = {"metadata": {"name": "metrics"}}
        api.post(f"/api/v1/namespaces/{namespace}/services", metadata | {"spec": service})
        api.post(SERVICES, {"metadata": {"name": NAME}, "spec": registration})
        try:
            yield metric
        finally:
            # Namespaces do not end while an API is announced and does not answer.
            api.delete(f"{SERVICES}/{NAME}")
