"""
The user whom a proxy with a login of its own names in headers, such as an OpenID Connect proxy behind an Ingress.

A proxy proves itself by a secret, because each pod of a cluster can send headers. The API server then decides by the
name and the groups what the user may see, as for a token.
"""

import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiohttp import web

from dljob.kube.reviews import User
from dljob_web.guarding import refuse

PROOF: Final = "X-DLJob-Proxy-Secret"
SHORTEST_SECRET: Final = 32

OWN: Final = "system:"
"""Names with this prefix belong to Kubernetes, and a proxy may claim none of them."""
AUTHENTICATED: Final = "system:authenticated"
"""The group that the API server adds to each user whom it knows."""


class Names(NamedTuple):
    """A header that names users or groups, and the prefix that the API server gives to such names."""

    header: str
    prefix: str = ""

    def read(self, request: web.Request) -> str:
        """Return the value; a header that comes twice may be the user's own."""
        given = request.headers.getall(self.header, []) if self.header else []
        if len(given) > 1:
            raise ValueError(
                f"the header {self.header} comes {len(given)} times; the proxy sets it"
            )
        return "".join(given).strip()

    def complete(self, names: Sequence[str]) -> list[str]:
        """Put the prefix before each name."""
        return [f"{self.prefix}{name.strip()}" for name in names if name.strip()]


class Proxy(NamedTuple):
    """The proxy of one page."""

    users: Names
    groups: Names
    secret: str

    def identify(self, request: web.Request) -> User | web.Response:
        """Return the user that the proxy names, or a refusal."""
        proofs = request.headers.getall(PROOF, [])
        if len(proofs) != 1 or not self._proves(proofs[0]):
            return refuse(401, f"the header {PROOF} has not the secret of the proxy")
        try:
            user, groups = self.users.read(request), self.groups.read(request)
        except ValueError as error:
            return refuse(400, str(error))
        if not user:
            return refuse(401, f"the proxy names no user in the header {self.users.header}")
        names = [*self.users.complete([user]), *self.groups.complete(groups.split(","))]
        return _check(names) or User(names[0], groups=(*names[1:], AUTHENTICATED))

    def _proves(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.secret.encode())


def _check(names: Sequence[str]) -> web.Response | None:
    own = [name for name in names if name.startswith(OWN)]
    return refuse(403, f"{own[0]}: a proxy names no user or group of Kubernetes") if own else None
