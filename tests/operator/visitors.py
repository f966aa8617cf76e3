"""Clients of pods' SideCars, with any certificate or none."""

import http.client
import ssl
from pathlib import Path

from dljob.operator.podspecs.building import SIDECAR_PORT
from dljob_wire import codec
from dljob_wire.messages import State, Stop
from tests.operator.stages import Stage


class Visitor:
    """A client of a pod's SideCar, perhaps with a certificate."""

    def __init__(self, stage: Stage, pod: str, shows: Path | None) -> None:
        found = stage.api.get(stage.pod_path(pod))
        self._host = found["status"]["podIP"]
        own = stage.kubelets.folder / pod / "tls"
        self._context = ssl.create_default_context(cafile=str(own / "ca.crt"))
        # The server's name is not under test here.
        self._context.check_hostname = False
        if shows is not None:
            self._context.load_cert_chain(shows / "tls.crt", shows / "tls.key")

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            self._host, SIDECAR_PORT, context=self._context, timeout=240.0
        )
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def state(self) -> State:
        code, body = self.ask("GET", "/v1/state")
        assert code == 200, body
        return codec.decode(State, body)

    def stop(self, state: State) -> tuple[int, bytes]:
        """Send a stop, as a later leader."""
        told = Stop(state.epoch + 1, state.generation + 1, state.incarnation, leave=True)
        return self.ask("PUT", "/v1/target", codec.encode_target(told))
