"""The front before a SuperLink: what it passes on, and what a stranger can take of it."""

import asyncio
import hashlib
import http.client
import json
import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.deployment import clock, private, supernode
from fedmes.deployment.certificates import make_server
from fedmes.deployment.front import Front, Limits
from fedmes.errors import FederationError, UserError
from helpers.waiting import HANGS, until

pytestmark = pytest.mark.flower


class SuperLink(BaseHTTPRequestHandler):
    """Stands in for Flower: answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.asked.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        about = {"sha256": hashlib.sha256(body).hexdigest(), "headers": dict(self.headers)}
        answer = json.dumps(about).encode()
        self.send_response(201)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass

    def address_string(self):
        return "socket"


class UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_server(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def superlink(tmp_path):
    path = private.socket_of(tmp_path)
    with UnixServer(str(path), SuperLink) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def front(path, tls, **limits):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    door = Front(path, context, Limits(**limits))
    server = asyncio.run_coroutine_threadsafe(door.start("127.0.0.1", 0), loop).result(HANGS)
    door.port = server.sockets[0].getsockname()[1]
    try:
        yield door
    finally:
        asyncio.run_coroutine_threadsafe(everybody_out(server), loop).result(HANGS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANGS)
        loop.close()


async def everybody_out(server):
    server.close()
    visits = asyncio.all_tasks() - {asyncio.current_task()}
    for visit in visits:
        visit.cancel()
    await asyncio.gather(*visits, return_exceptions=True)


def connection(door, tls):
    trusted = ssl.create_default_context(cafile=tls.authority)
    return http.client.HTTPSConnection("127.0.0.1", door.port, context=trusted, timeout=HANGS)


def raw(door, tls):
    """A connection after its handshake."""
    trusted = ssl.create_default_context(cafile=tls.authority)
    mine = socket.create_connection(("127.0.0.1", door.port), timeout=HANGS)
    return trusted.wrap_socket(mine, server_hostname="127.0.0.1")


def closed(stream):
    """Wait for the other side to close; whatever it says before that."""
    said = b""
    try:
        while part := stream.recv(1000):
            said += part
    except (ConnectionError, ssl.SSLError):
        pass
    return said


def test_messages_of_sites_pass_both_ways_on_one_connection(superlink, tls):
    large = bytes(range(256)) * 24_000  # more than Flower's parts of 5 MiB
    with front(superlink.server_address, tls) as door:
        there = connection(door, tls)
        for body in (b"small", large, b""):
            headers = {"flwr-signature": "s", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=me"}
            there.request("POST", "/v1/fleet/pull-messages", body, headers)
            before = there.sock
            answer = there.getresponse()
            said = json.loads(answer.read())
            assert (answer.status, there.sock) == (201, before)
            assert said["sha256"] == hashlib.sha256(body).hexdigest()
            assert said["headers"]["flwr-signature"] == "s"
            assert not {"X-Forwarded-For", "x-forwarded-for", "forwarded"} & set(said["headers"])
        there.close()
        until(lambda: not door.here, "the connection's end")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/docs", "/health", "/v1/fleet/",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/x",
        "https://localhost/v1/control/start-run", "/v1/fleet/x?y=/v1/control", "/v1/fleet/x/../y",
    ],
)  # fmt: skip
def test_nothing_else_passes(superlink, tls, target):
    with front(superlink.server_address, tls) as door:
        there = connection(door, tls)
        there.request("POST", target, b"x")
        answer = there.getresponse()
        assert (answer.status, answer.read()) == (404, b"")
        there.request("GET", "/v1/fleet/pull-messages")
        assert there.getresponse().status == 404
        there.close()
    assert superlink.asked == []


def test_a_second_request_behind_the_first_passes_the_same_check(superlink, tls):
    """As one that is hidden in the body of another."""
    both = (
        b"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n1"
        b"POST /v1/control/start-run HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    )
    with front(superlink.server_address, tls) as door, raw(door, tls) as stream:
        stream.sendall(both)
        said = closed(stream)
        assert said.startswith(b"HTTP/1.1 201") and b"HTTP/1.1 404" in said
    assert superlink.asked == ["/v1/fleet/a"]


@pytest.mark.parametrize(
    "lengths", ["content-length: 0\r\ncontent-length: 5", "content-length: -1"]
)
def test_lengths_that_contradict_each_other_are_no_request(superlink, tls, lengths):
    with front(superlink.server_address, tls) as door, raw(door, tls) as stream:
        stream.sendall(f"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\n{lengths}\r\n\r\nabcde".encode())
        assert b" 201 " not in closed(stream)
    assert superlink.asked == []


def test_large_messages_are_refused_before_they_come(superlink, tls):
    with front(superlink.server_address, tls, message=100_000) as door:
        with raw(door, tls) as stream:
            head = b"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\ncontent-length: 600000000\r\n\r\n"
            stream.sendall(head)
            assert closed(stream).startswith(b"HTTP/1.1 413")
        with raw(door, tls) as stream:
            stream.sendall(
                b"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            stream.sendall(b"186a1\r\n" + bytes(100_001))
            assert b" 201 " not in closed(stream)
        with raw(door, tls) as stream:
            stream.sendall(b"POST /v1/fleet/a HTTP/1.1\r\nx: " + bytes(20_000).replace(b"\0", b"x"))
            assert closed(stream) == b""
        until(lambda: not door.here, "the end of all")


def test_whoever_is_slow_is_sent_away(superlink, tls):
    half = b"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab"
    with front(superlink.server_address, tls, head_seconds=0.1, seconds=0.1) as door:
        for begun in (b"", half[:30], half):
            with raw(door, tls) as stream:
                stream.sendall(begun)
                assert closed(stream) == b""
        until(lambda: not door.here, "room")
    with front(superlink.server_address, tls, handshake_seconds=0.1) as door:
        silent = socket.create_connection(("127.0.0.1", door.port), timeout=HANGS)
        assert closed(silent) == b""
        silent.close()


def test_one_address_does_not_take_all_connections(superlink, tls):
    with front(superlink.server_address, tls, per_address=2) as door:
        first, second = raw(door, tls), raw(door, tls)
        with pytest.raises(OSError):
            raw(door, tls)
        first.close()
        until(lambda: door.here["127.0.0.1"] < 2, "room")
        third = connection(door, tls)
        third.request("POST", "/v1/fleet/a", b"")
        assert third.getresponse().status == 201
        second.close()
        third.close()


def test_large_messages_wait_for_each_other(superlink, tls):
    body = bytes(100_000)
    head = f"POST /v1/fleet/a HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with front(superlink.server_address, tls, large=1) as door:
        slow, other = raw(door, tls), raw(door, tls)
        slow.sendall(head)
        until(lambda: door.large["127.0.0.1"].locked(), "the first")
        other.sendall(head + body)
        small = connection(door, tls)
        small.request("POST", "/v1/fleet/small", b"x")
        assert small.getresponse().status == 201
        assert superlink.asked.count("/v1/fleet/a") <= 1
        slow.sendall(body)
        assert slow.recv(12) == other.recv(12) == b"HTTP/1.1 201"
        for each in (slow, other, small):
            each.close()


def test_without_a_superlink_it_is_said(tmp_path, tls):
    with front(tmp_path / "nothing", tls) as door:
        there = connection(door, tls)
        there.request("POST", "/v1/fleet/a", b"")
        assert there.getresponse().status == 503
        there.close()


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, ""), (3, ""), (-300, ""), (7, "7 s ahead of that of"), (-310, "310 s behind that of")],
)
def test_a_clock_is_compared_with_the_fronts(tmp_path, tls, monkeypatch, seconds, says):
    now = clock.time.time
    with front(tmp_path / "nothing", tls) as door:
        monkeypatch.setattr(clock.time, "time", lambda: now() + seconds)
        # whole seconds at the other end: the same answer, whenever it is asked
        monkeypatch.setattr("fedmes.deployment.front.formatdate", lambda usegmt: _date(now()))
        if not says:
            assert clock.check(f"127.0.0.1:{door.port}", tls.authority)
            return
        with pytest.raises(UserError, match=f"clock: this machine's is {says}"):
            clock.check(f"127.0.0.1:{door.port}", tls.authority)


def _date(now):
    from email.utils import formatdate

    return formatdate(now, usegmt=True)


def test_a_superlink_that_is_not_there_or_another(tmp_path, tls):
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        assert not clock.check(f"127.0.0.1:{mine.getsockname()[1]}", tls.authority)
    (tmp_path / "other").mkdir()
    other = make_server(tmp_path / "other").authority
    refused = pytest.raises(UserError, match="its certificate is not accepted")
    with front(tmp_path / "nothing", tls) as door, refused:
        clock.check(f"127.0.0.1:{door.port}", other)
    for wrong, says in (("here", "HOST:PORT is needed"), ("here:x", "HOST:PORT is needed")):
        with pytest.raises(UserError, match=says):
            clock.check(wrong, tls.authority)
    with pytest.raises(UserError, match="not a certificate"):
        clock.check("127.0.0.1:1", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("ahead", "error", "says"),
    [(6.0, UserError, "6 s ahead"), (0.0, FederationError, "has ended with status 0")],
)
def test_a_supernode_that_ends_says_why(tmp_path, monkeypatch, capsys, ahead, error, says):
    """Flower's ends with status 0 and without a word when the clock is wrong."""
    (tmp_path / "site.toml").write_text('name = "north"\nclient = 0\n')
    found = iter([None, ahead])  # the SuperLink comes later
    monkeypatch.setattr(clock, "ahead", lambda *_: next(found))
    monkeypatch.setattr(private, "command", lambda *_: ["/bin/true"])
    monkeypatch.setattr(supernode.signal, "signal", lambda *_: None)
    with pytest.raises(error, match=says):
        supernode.run(tmp_path, "localhost:1", tmp_path / "ca.crt")
    assert "clock is not checked" in capsys.readouterr().err


# --- sockets --------------------------------------------------------------------------------------


def test_the_path_of_a_socket_is_short_enough_and_its_folder_private(tmp_path, monkeypatch):
    assert private.socket_of(tmp_path / "a") == tmp_path / "a/socket"
    monkeypatch.setattr(private.tempfile, "gettempdir", lambda: str(tmp_path))
    deep = tmp_path / ("x" * 100)
    far = private.socket_of(deep)
    assert far.parent.parent == tmp_path and far == private.socket_of(deep)
    assert far.parent.stat().st_mode & 0o777 == 0o700
    far.parent.chmod(0o777)
    with pytest.raises(UserError, match="another user can write there"):
        private.socket_of(deep)


def test_tokens_are_no_arguments():
    arguments = ["flwr-serverapp", "--runtime-api-address", "a", "--token", "secret", "--insecure"]
    kept, secret = private._without_token(arguments)
    assert kept == ["flwr-serverapp", "--runtime-api-address", "a", "--insecure"]
    assert secret == {"FEDMES_TASK_TOKEN": "secret"}
