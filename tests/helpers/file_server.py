"""An HTTP server of one archive that may break off, refuse ranges or wait; a small CIFAR-100."""

import hashlib
import io
import pickle
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedmes.data import catalog

LONG = 120  # seconds that a test waits for something that takes a moment


class Server(ThreadingHTTPServer):
    """Serves one content under any name, and remembers what it was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = b""
        self.breaks = []  # after how many bytes the next answers break off
        self.ranges = True
        self.status = None
        self.asked = []  # (the range that was asked for, bytes that were sent)
        # somebody asks; and gets an answer
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests; what is said about it would mix with what
        the client says."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked, start = self.headers["Range"], 0
        server.reached.set()
        server.open.wait(LONG)
        if server.status is not None:
            self.send_error(server.status)
            return
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(server.content):
                server.asked.append((asked, 0))
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header(
                "Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}"
            )
        else:
            self.send_response(200)
        rest = server.content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        sent = rest[: server.breaks.pop(0)] if server.breaks else rest
        server.asked.append((asked, len(sent)))
        self.wfile.write(sent)
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def cifar_files():
    """CIFAR-100 in small, as files of its archive; noise, so that compression leaves it its
    length."""
    made = {
        "cifar-100-python/meta": pickle.dumps({"fine_label_names": [f"c{i}" for i in range(100)]})
    }
    for part in ("train", "test"):
        x = np.random.default_rng(0).integers(0, 256, (100, 3072), dtype=np.uint8)
        made[f"cifar-100-python/{part}"] = pickle.dumps(
            {"data": x, "fine_labels": list(range(100))}
        )
    return made


def tar(files):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def cifar(server, monkeypatch):
    server.content = tar(cifar_files())
    offer(server, monkeypatch, "cifar100")
    return server


def offer(server, monkeypatch, name):
    """The server's content as the official archive of a data set."""
    entry = catalog.CATALOG[name]
    archive = replace(
        entry.archive,
        url=server.url(entry.archive.file),
        md5=hashlib.md5(server.content).hexdigest(),
    )
    monkeypatch.setitem(catalog.CATALOG, name, replace(entry, archive=archive))
