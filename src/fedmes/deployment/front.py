"""The one door of a SuperLink to the world: sites come in over TLS, and nobody else.

Only requests to Flower's fleet interface are passed on, to the Unix socket on which the SuperLink
listens. They cannot reach its control and runtime interfaces, which have no door to the world.
Flower checks the keys of nodes itself; the front bounds what a stranger can take before that:
connections, time and memory.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import h11

FLEET = re.compile(rb"/v1/fleet/[a-z0-9-]+")
CHUNK = 64 * 1024
# of one connection and not of a request, or invented by whoever wants to seem another
DROPPED = re.compile(rb"connection|keep-alive|proxy-.*|te|trailer|upgrade|expect|forwarded|x-.*")
SPARE = 64  # descriptors for everything but connections


@dataclass(frozen=True)
class Limits:
    """What strangers may take."""

    message: int = 16 * 2**20  # bytes of a request; Flower sends arrays in parts of 5 MiB
    head: int = 16 * 1024  # bytes of a request's head
    connections: int = 1024
    per_address: int = 64
    large: int = 8  # requests above CHUNK that one address may have in progress
    handshake_seconds: float = 10.0
    head_seconds: float = 20.0  # from one request, or the connection, to the next head
    seconds: float = 300.0  # of a request, from its head to the end of the answer


class Refused(Exception):
    """A request that is not passed on, with the status of the answer."""

    def __init__(self, status: int) -> None:
        self.status = status


class Front:
    """Passes requests of sites on to the SuperLink at a Unix socket."""

    def __init__(self, upstream: Path, tls: ssl.SSLContext, limits: Limits | None = None) -> None:
        self.upstream = upstream
        self.tls = tls
        self.limits = limits or Limits()
        self.most = min(self.limits.connections, _descriptors() // 2)
        self.here: Counter[str] = Counter()  # connections by address
        self.large: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(self.limits.large)
        )

    async def start(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, host, port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername")[0]
        full = self.here.total() >= self.most or self.here[address] >= self.limits.per_address
        self.here[address] += 1
        try:
            if not full:
                seconds = self.limits.handshake_seconds
                await writer.start_tls(self.tls, ssl_handshake_timeout=seconds)
                await _Visit(self, address, reader, writer).serve()
        except (OSError, TimeoutError, h11.ProtocolError, EOFError):
            pass  # whoever breaks off or breaks rules is not answered
        finally:
            self._left(address)
            writer.transport.abort()

    def _left(self, address: str) -> None:
        self.here[address] -= 1
        if not self.here[address]:
            del self.here[address]
            self.large.pop(address, None)


class _Visit:
    """One connection: requests, one after the other."""

    def __init__(
        self,
        front: Front,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.front = front
        self.limits = front.limits
        self.address = address
        self.site = _Side(h11.SERVER, reader, writer, front.limits.head)

    async def serve(self) -> None:
        while True:
            async with asyncio.timeout(self.limits.head_seconds):
                request = await self.site.next()
            if not isinstance(request, h11.Request):
                return
            try:
                await self._pass_on(_passing(request))
            except Refused as refused:
                await self._answer(refused.status)
                return
            if self.site.state.our_state is not h11.DONE:
                return
            self.site.state.start_next_cycle()

    async def _pass_on(self, request: h11.Request) -> None:
        async with (
            asyncio.timeout(self.limits.seconds),
            self._room(request),
            self._superlink() as superlink,
        ):
            await superlink.send(request)
            await self._pass_body(superlink)
            await self._pass_answer(superlink)

    @asynccontextmanager
    async def _room(self, request: h11.Request) -> AsyncIterator[None]:
        """Room for a large message, which is waited for; one that does not say is large."""
        length = int(dict(request.headers).get(b"content-length", CHUNK + 1))
        if length > self.limits.message:
            raise Refused(413)
        if length <= CHUNK:
            yield
            return
        async with self.front.large[self.address]:
            yield

    @asynccontextmanager
    async def _superlink(self) -> AsyncIterator[_Side]:
        try:
            reader, writer = await asyncio.open_unix_connection(self.front.upstream)
        except OSError:
            raise Refused(503) from None  # Flower tries again
        try:
            yield _Side(h11.CLIENT, reader, writer, self.limits.head)
        finally:
            writer.transport.abort()

    async def _pass_body(self, superlink: _Side) -> None:
        size = 0
        while isinstance(part := await self.site.next(), h11.Data):
            size += len(part.data)
            if size > self.limits.message:
                raise Refused(413)
            await superlink.send(part)
        await superlink.send(h11.EndOfMessage())

    async def _pass_answer(self, superlink: _Side) -> None:
        while True:
            part = await superlink.next()
            if isinstance(part, h11.Response):
                headers = [pair for pair in part.headers if not DROPPED.fullmatch(pair[0])]
                part = h11.Response(status_code=part.status_code, headers=headers)
            if isinstance(part, h11.Response | h11.Data | h11.EndOfMessage):
                await self.site.send(part)
            if not isinstance(part, h11.Response | h11.Data | h11.InformationalResponse):
                return

    async def _answer(self, status: int) -> None:
        """An answer of the front's own; its date lets sites check their clocks."""
        date = formatdate(usegmt=True)
        headers = [("date", date), ("content-length", "0"), ("connection", "close")]
        with suppress(h11.LocalProtocolError):  # the answer has begun
            await self.site.send(h11.Response(status_code=status, headers=headers))
            await self.site.send(h11.EndOfMessage())


class _Side:
    """One side of the front: HTTP over a stream."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: int,
    ) -> None:
        self.state = h11.Connection(role, max_incomplete_event_size=head)
        self.reader = reader
        self.writer = writer

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self.state.next_event()) is h11.NEED_DATA:
            self.state.receive_data(await self.reader.read(CHUNK))
        return event  # type: ignore[return-value]

    async def send(self, event: h11.Event) -> None:
        data = self.state.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()


def _passing(request: h11.Request) -> h11.Request:
    """The head that is passed on."""
    if request.method != b"POST" or not FLEET.fullmatch(request.target):
        raise Refused(404)
    kept = [pair for pair in request.headers if not DROPPED.fullmatch(pair[0])]
    headers = [*kept, (b"connection", b"close")]
    return h11.Request(method=request.method, target=request.target, headers=headers)


def _descriptors() -> int:
    """How many connections can be open; a connection of a site needs one to the SuperLink, too."""
    import resource  # not there on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return 2**20
    return soft - SPARE
