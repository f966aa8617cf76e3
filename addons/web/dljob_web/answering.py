"""Responses of the page's server: packed once for all viewers, and one sentence for each refusal."""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from dljob_web.guarding import Handler, refuse

LEVEL: Final = 5
"""The compression level: higher ones take twice as long for a tenth less."""


class SourceError(Exception):
    """The source has no answer; ``str()`` is one line that names the remedy."""

    def __init__(
        self, message: str, *, status: int = 503, problems: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """``problems`` are those of documents in the request."""
        super().__init__(message)
        self.status = status
        self.problems = problems


class Packed(NamedTuple):
    """A response as it is sent."""

    body: bytes
    """Compressed."""
    tag: str

    @classmethod
    def of(cls, text: str) -> "Packed":
        body = gzip.compress(text.encode(), LEVEL, mtime=0)
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def write(document: Any) -> str:
    """Write JSON as short as it can be."""
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def pack_items(items: Sequence[Any]) -> Packed:
    return Packed.of(write({"items": items}))


def answer_packed(request: web.Request, packed: Packed, kind: str) -> web.Response:
    """Send a response, or 304 if the viewer has it already."""
    headers = {"ETag": packed.tag, "Vary": "Accept-Encoding"}
    if packed.tag in _split(request.headers.get("If-None-Match", "")):
        return web.Response(status=304, headers=headers)
    if "gzip" in _split(request.headers.get("Accept-Encoding", "")):
        headers["Content-Encoding"] = "gzip"
        body = packed.body
    else:
        body = gzip.decompress(packed.body)
    return web.Response(body=body, headers={**headers, "Content-Type": f"{kind}; charset=utf-8"})


def _split(field: str) -> Sequence[str]:
    return [each.partition(";")[0].strip() for each in field.split(",")]


@web.middleware
async def speak_plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into JSON with one sentence."""
    try:
        return await handler(request)
    except SourceError as error:
        return refuse(error.status, str(error), problems=error.problems)
    except web.HTTPException as error:
        answer = refuse(error.status, f"{request.method} {request.path}: {error.reason}")
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
