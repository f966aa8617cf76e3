"""Nearly valid requests, as an attacker would send them."""

import random

from dljob_wire import codec
from tests.sidecar.targets import run

REFUSALS = {b"", b"200", b"400", b"403", b"404", b"405", b"409", b"413"}
"""The possible answers: also none, or the state if a request is valid by chance."""

METHODS = ["PUT", "PUT", "PUT", "GET", "POST", "BREW", "put"]
PATHS = ["/v1/target", "/v1/target", "/v1/state?after=\xff", "/v1/%zz", "*", "/../../etc/passwd"]


def make_nonsense(chance: random.Random) -> bytes:
    body = bytearray(codec.encode_target(run(chance.randrange(9))))
    for _ in range(chance.randrange(4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    length = chance.choice([len(body), len(body), len(body), len(body) - 1, "x", -1])
    head = f"{chance.choice(METHODS)} {chance.choice(PATHS)} HTTP/1.1\r\nHost: d\r\n"
    head += f"Connection: close\r\nContent-Length: {length}\r\n\r\n"
    request = bytearray(head.encode("latin-1") + body)
    for _ in range(chance.choice([0, 0, 0, 1, 5])):
        request[chance.randrange(len(request))] = chance.randrange(256)
    return bytes(request)
