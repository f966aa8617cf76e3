"""While the authority changes, each program trusts those that are one step behind."""

import itertools
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.control.sidecars.dialing import Credentials
from dljob.control.situation.ports import Fenced
from dljob.kube import access, certificates
from dljob.kube.certificates import CA_SECRET, FORMER, NEXT, Authority, WrongAuthority
from dljob.kube.client import ApiServer
from dljob.kube.resources import SECRETS
from dljob.operator import authority_rotation
from dljob.operator.operating import Guard
from dljob_sidecar.serving import trust
from tests.loops import on_loop

CONTROLLER, SIDECAR = "controller.dljob", "0b5a.job.dljob"
STEPS = ("begin", "switch", "end")


def iter_stages() -> Iterator[Authority]:
    data: dict[str, str] = Authority.new().data()
    yield Authority.read(data)
    for step in STEPS:
        for name, value in authority_rotation.STEPS[step](data).items():
            if value is None:
                del data[name]
            else:
                data[name] = value
        yield Authority.read(data)


def shake_hands(controller: Path, sidecar: Path) -> None:
    """Authenticate both sides with the product's own contexts."""
    client = Credentials(str(controller), renewal_seconds=0.0, now=lambda: 0.0).context()
    server = trust.Certificates(sidecar).load()
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(back, there, server_hostname=SIDECAR)
    answers = server.wrap_bio(there, back, server_side=True)
    pending = [asks, answers, asks, answers]
    for side in pending:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_neighbouring_steps_trust_each_other(tmp_path):
    stages = list(iter_stages())
    folders = []
    for number, authority in enumerate(stages):
        controller, sidecar = tmp_path / f"controller-{number}", tmp_path / f"sidecar-{number}"
        certificates.write_own(authority, controller, name=CONTROLLER)
        certificates.write_own(authority, sidecar, name=SIDECAR)
        folders.append((controller, sidecar))
    for (controller, sidecar), (later, renewed) in itertools.pairwise(folders):
        shake_hands(later, sidecar)
        shake_hands(controller, renewed)
        shake_hands(later, renewed)
    with pytest.raises(ssl.SSLError):
        shake_hands(folders[-1][0], folders[0][1])
    assert stages[0].certificate != stages[-1].certificate
    assert not stages[-1].others


@pytest.mark.parametrize(
    ("data", "steps"),
    [({}, ["switch", "end"]), ({NEXT: ""}, ["begin", "end"]), ({FORMER: ""}, ["begin", "switch"])],
)
def test_wrong_step_is_refused_with_the_right_one(data, steps):
    for step in steps:
        with pytest.raises(authority_rotation.WrongStep, match=r"begin|switch|end"):
            authority_rotation.STEPS[step](data)


@pytest.mark.cluster
@pytest.mark.processes
@on_loop
async def test_leader_resigns_when_a_step_is_taken(control_plane, namespace):
    api = ApiServer(access.find(str(control_plane.admin)))
    try:
        first = await certificates.open_authority(api, namespace)
        for step in STEPS:
            before = await certificates.open_authority(api, namespace)
            guard = Guard(api, before, namespace=namespace)
            await guard.check()
            await authority_rotation.take(api, namespace, step=step)
            with pytest.raises(Fenced, match="the next leader uses"):
                await guard.check()
        last = await certificates.open_authority(api, namespace)
        assert last.certificate != first.certificate
        found: dict[str, Any] = await api.get(SECRETS, CA_SECRET, namespace)
        assert set(found["data"]) == {"tls.crt", "tls.key"}
    finally:
        await api.close()


def test_broken_rotation_secret_is_refused_by_name():
    data = Authority.new().data() | {NEXT: "bm8="}
    with pytest.raises(WrongAuthority, match=CA_SECRET):
        Authority.read(data)
