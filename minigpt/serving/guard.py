"""Access: checks before a request is read, and limits on reading it.

A page of another origin can make a browser send requests to this machine, and a name can be made to point to it
(DNS rebinding): so the names in Host and Origin are checked, also where no token is needed.
"""

import asyncio
import hmac
import ipaddress
import json
import time
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from minigpt.serving.protocol import ApiError

MAX_BODY_BYTES = 1 << 20
MAX_DISCARDED_BYTES = 1 << 25  # read and dropped: a client that is still sending does not read the answer
MAX_CONNECTIONS = 500  # at a time; more are closed at once
BODY_SECONDS, HEADER_SECONDS = 10.0, 10.0  # for a request to arrive
OPEN = ("/", "/health")  # paths that need no token
SECRET_WORDS = {"token", "key", "api_key", "apikey", "api-key", "access_token", "authorization"}
HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
HEADERS |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class Guard:
    """Refuses requests that come from elsewhere or without the token.

    Args:
        app: answers the requests that are not refused.
        hosts: the names of this server. With a token, numeric addresses are accepted, too.
        token: that clients must send; None: any key is accepted.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None):
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        scope["began"] = time.monotonic()
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif refusal := self.refusal(scope["path"], scope["query_string"].decode("latin-1"), Headers(scope=scope)):
            await error_response(refusal)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def refusal(self, path: str, query: str, headers: Headers) -> ApiError | None:
        """Return why a request is refused; None if it isn't."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self.is_ours(hosts[0]):
            return ApiError(403, "the Host header does not name this server", code="wrong_host")
        if any(host_of(origin) != hosts[0].lower() for origin in origins):
            return ApiError(403, "pages of another origin may not ask this server", code="wrong_origin")
        if SECRET_WORDS & {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}:
            return ApiError(400, "a token does not belong in an address: send it as Authorization: Bearer TOKEN")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self.token or "").encode())
        if self.token is not None and not known and path not in OPEN:
            return ApiError(401, "wrong or no token: send Authorization: Bearer TOKEN", code="invalid_api_key")
        return None

    def is_ours(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self.hosts:
                return True
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.token is not None


def host_of(origin: str) -> str:
    """Return the host and port that an Origin header names; "" if it names none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def error_response(error: ApiError) -> JSONResponse:
    """Return an error in OpenAI's form."""
    headers = {"Connection": "close"} if error.status in (408, 413) else {}
    headers |= {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse(error.content, error.status, headers)


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request holds.

    Raises:
        ApiError: the request is too large, too slow, or no JSON object.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BODY_BYTES:
                    body += chunk
                elif size > MAX_DISCARDED_BYTES:
                    break
    except TimeoutError:
        raise ApiError(408, f"the request did not come within {BODY_SECONDS:.0f} s") from None
    if size > MAX_BODY_BYTES:
        raise ApiError(413, f"the request is larger than {MAX_BODY_BYTES:,} bytes")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "the request is not JSON") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the request must be a JSON object")
    return content


class Patient(H11Protocol):
    """A connection that is closed if its next request is late, its answer is not read, or there are too many."""

    def connection_made(self, transport: Any) -> None:
        """Begin to watch the connection."""
        super().connection_made(transport)
        self.before: Any = None
        self.unsent = 0
        self.watch = self.loop.call_later(HEADER_SECONDS, self.look)
        if len(self.connections) > MAX_CONNECTIONS:
            self.transport.abort()

    def look(self) -> None:
        """Close the connection if since the last look it was idle, or nothing of its answer was read."""
        unsent = self.transport.get_write_buffer_size()
        if self.cycle is self.before and (
            self.cycle is None or self.cycle.response_complete or unsent == self.unsent > 0
        ):
            self.transport.abort()
            return
        self.before, self.unsent = self.cycle, unsent
        self.watch = self.loop.call_later(HEADER_SECONDS, self.look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self.watch.cancel()
        super().connection_lost(exc)
