"""Serves the live page on this machine, to whoever knows its address; read only."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedmes.common.text import printable
from fedmes.errors import UserError
from fedmes.report import collect
from fedmes.report.live import live_data, live_page, over

LOOPBACK = "127.0.0.1"
# A tunnel may end at another port, but never under another name: a page of somebody else's, whose
# name suddenly leads here, is refused.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
PAUSE = 1.0  # seconds for which an answer holds, however many ask
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address is the key
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WatchServer(ThreadingHTTPServer):
    """The page of a directory's runs, at `address`, with a token in it."""

    daemon_threads = True

    def __init__(self, directory: Path, port: int = 0) -> None:
        collect.statuses(directory)  # a UserError before anything is served
        self.directory = directory
        self.token = secrets.token_urlsafe(24)
        self.said = False  # that all is over
        self.looked = time.monotonic()
        self.pages = {
            "": _Kept("text/html", lambda: live_page(directory)),
            "data": _Kept("application/json", lambda: json.dumps(live_data(directory))),
        }
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UserError(f"--port {port}: cannot be served ({error.strerror})") from None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has gone away is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def service_actions(self) -> None:
        """Twice a second: say it when the last run is over."""
        if self.said or time.monotonic() - self.looked < PAUSE:
            return
        self.looked = time.monotonic()
        found, _ = collect.statuses(self.directory)
        if over(found):
            self.said = True
            for place, each in found.items():
                print(printable(f"{place}: {each.words}"), file=sys.stderr)
            print("nothing is under way any more; Ctrl-C ends this page", file=sys.stderr)


class _Kept:
    """An answer that is made at most once a second."""

    def __init__(self, kind: str, make: Callable[[], str]) -> None:
        self.kind = kind
        self.make = make
        self.lock = threading.Lock()
        self.made = float("-inf")
        self.content = b""

    def get(self) -> bytes:
        with self.lock:
            if time.monotonic() - self.made >= PAUSE:
                self.content = self.make().encode()
                self.made = time.monotonic()
            return self.content


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version = "fedmes"
    sys_version = ""

    def do_GET(self) -> None:
        name = self._allowed()
        if name is None:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"the address is not complete\n")
        elif name not in self.server.pages:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n")
        else:
            page = self.server.pages[name]
            try:
                self._answer(HTTPStatus.OK, page.kind, page.get())
            except UserError as error:  # the runs are gone
                reason = f"{error}\n".encode()
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", reason)

    def _allowed(self) -> str | None:
        """Which page is asked for; None for who may not ask."""
        host = (self.headers.get("Host") or "").lower()
        name, colon, port = host.rpartition(":")
        if not (colon and port.isdigit()):
            name = host
        token, slash, page = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if name not in HOSTS or not known or not slash:
            return None
        return page

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for header, value in HEADERS.items():
            self.send_header(header, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:
        """Nobody reads it, and addresses are secret."""
