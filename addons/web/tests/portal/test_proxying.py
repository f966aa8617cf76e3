"""The user whom a proxy names counts only with the proxy's secret, and only as far as the API server goes."""

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from addons.web.tests.portal.houses import HOME, RED, House, serve
from dljob.kube.reviews import User
from dljob_web.portal.proxying import AUTHENTICATED, PROOF, Names, Proxy
from tests.operator.stages import wait_until
from tests.servers.processes import Guard

SECRET = "x" * 40
PROXY = Proxy(Names("X-User", "oidc:"), Names("X-Groups"), secret=SECRET)


def identify(*headers: tuple[str, str], proxy: Proxy = PROXY):
    return proxy.identify(make_mocked_request("GET", "/", headers=CIMultiDict(headers)))


def test_a_user_has_the_prefix_and_the_groups_that_the_api_server_knows():
    told = (PROOF, SECRET), ("X-User", "ada"), ("X-Groups", "ml, ops,")
    assert identify(*told) == User("oidc:ada", groups=("ml", "ops", AUTHENTICATED))
    # A comma in the header of the user is part of the name.
    assert identify((PROOF, SECRET), ("X-User", "ada,eve")).name == "oidc:ada,eve"
    without = Proxy(Names("X-User"), Names(""), secret=SECRET)
    assert identify(*told, proxy=without) == User("ada", groups=(AUTHENTICATED,))


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, [(PROOF, "wrong"), ("X-User", "ada")]),
        (401, [(PROOF, ""), ("X-User", "ada")]),
        (401, [(PROOF, SECRET), (PROOF, SECRET), ("X-User", "ada")]),
        (401, [(PROOF, SECRET)]),
        (401, [(PROOF, SECRET), ("X-User", "")]),
        # The second may be one that the user has sent, and the proxy has passed on.
        (400, [(PROOF, SECRET), ("X-User", "ada"), ("X-User", "eve")]),
        (400, [(PROOF, SECRET), ("X-User", "ada"), ("X-Groups", "a"), ("X-Groups", "b")]),
        (403, [(PROOF, SECRET), ("X-User", "ada"), ("X-Groups", "ml,system:masters")]),
    ],
)
def test_other_headers_name_no_user(status, headers):
    assert identify(*headers).status == status


def test_no_proxy_names_a_user_of_kubernetes():
    plain = Proxy(Names("X-User"), Names(""), secret=SECRET)
    assert identify((PROOF, SECRET), ("X-User", "system:admin"), proxy=plain).status == 403


@pytest.mark.cluster
@pytest.mark.processes
def test_api_server_decides_the_view_of_a_user(house: House, tmp_path):
    kubectl = house.plane.kubectl
    role = ("create", "rolebinding", "ml", f"--namespace={RED}")
    with Guard() as guard:
        kubeconfig = house.plane.kubeconfig_for_service_account(HOME, "dljob-web")
        words = "--proxy-user=X-User", "--proxy-groups=X-Groups", "--proxy-groups-prefix=oidc:"
        address, _ = serve(guard, kubeconfig, tmp_path, *words, f"--proxy-secret={SECRET}")
        behind = House(house.plane, address, house.tokens, house.server, house.api)
        ada = {"X-User": "ada", "X-Groups": "ml"}
        # Without the secret it is a request without a token.
        assert behind.ask("/api/v1/jobs", "", **ada)[0] == 401
        proven = ada | {PROOF: SECRET}
        assert behind.ask("/api/v1/jobs", "", **proven)[0] == 403
        kubectl(*role, "--role=red", "--group=oidc:ml")
        wait_until(lambda: behind.ask("/api/v1/jobs", "", **proven)[0] == 200)
        _, told = behind.ask("/api/v1/jobs", "", **proven)
        assert [job["metadata"]["name"] for job in told["items"]] == ["red-runs"]
        # The page has no token of that user, and takes neither another one that comes along nor its own.
        token = f"Bearer {house.tokens['chief']}"
        status, refused = behind.ask(
            f"/api/v1/logs/{RED}/red-runs", "", Authorization=token, **proven
        )
        assert (status, refused["error"].partition(",")[0]) == (403, "a proxy has logged you in")
        # Tokens are accepted as before; the page without a proxy believes no header.
        assert behind.ask("/api/v1/jobs", "red")[0] == 200
        assert house.ask("/api/v1/jobs", "", **proven)[0] == 401
