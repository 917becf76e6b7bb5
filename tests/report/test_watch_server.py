"""`fedmes watch`: who gets its page and who does not, and what is in it. In a browser:
test_live_page_in_browser.py."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from fedmes.errors import UserError
from fedmes.report import watch_server
from fedmes.report.live import live_data, live_page
from fedmes.report.watch_server import WatchServer
from fedmes.results import checkpoint
from fedmes.results.status import LogLine, Site
from helpers import going, made
from helpers.reported import Page
from helpers.waiting import HANGS, until


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_server, "PAUSE", 0.0)
    going.write(tmp_path / "run", 1)
    with checkpoint.locked(tmp_path / "run"), WatchServer(tmp_path / "run") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def test_only_who_knows_the_address_gets_the_page(server):
    token = server.token
    assert server.address == f"http://127.0.0.1:{server.server_port}/{token}/"
    for path in ("/", "/data", f"/{token}", f"/{token[:-1]}/", f"/x{token}/data", "*", f"{token}"):
        answer, content = ask(server, path)
        assert (answer.status, content) == (403, "the address is not complete\n"), path
    assert ask(server, f"/{token}/")[0].status == 200
    assert ask(server, f"/{token}/data")[0].status == 200
    assert ask(server, f"/{token}/../status.json")[0].status == 404
    assert ask(server, f"/{token}/config.toml")[0].status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("LocalHost:80", 200),
        ("example.org", 403), ("example.org:80", 403), ("127.0.0.1.example.org:80", 403), ("", 403),
    ],
)  # fmt: skip
def test_under_no_other_name(server, host, status):
    """A page of somebody else's, whose name is made to lead to this machine, learns nothing."""
    assert ask(server, f"/{server.token}/data", Host=host)[0].status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, f"/{server.token}/", method)[0].status == 501


def test_headers(server):
    answer, _ = ask(server, f"/{server.token}/")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_data_is_of_now(server):
    before = json.loads(ask(server, f"/{server.token}/data")[1])
    assert before["title"] == "Training: task 1 of 3, round 2 of 2 - fedmes watch"
    going.write(server.directory, 2)
    now = json.loads(ask(server, f"/{server.token}/data")[1])
    assert now["title"] == "Training: task 2 of 3, round 2 of 2 - fedmes watch"
    names = [[figure["id"] for figure in each["group"]["figures"]] for each in (before, now)]
    assert names == [
        ["accuracy", "multiples", "rounds"],
        ["accuracy", "forgetting", "multiples", "rounds"],
    ]


def test_when_the_run_is_gone(server):
    shutil.rmtree(server.directory)
    server.service_actions = lambda: None
    answer, content = ask(server, f"/{server.token}/data")
    assert (answer.status, content) == (503, f"{server.directory}: does not exist\n")


def test_answers_are_kept_for_a_second(monkeypatch):
    times = [0.0, 0.0, 0.5, 1.0, 1.0]
    monkeypatch.setattr(watch_server.time, "monotonic", lambda: times.pop(0))
    made_so_far = []
    kept = watch_server._Kept("text/plain", lambda: made_so_far.append("x") or "page")
    assert [kept.get(), kept.get(), kept.get()] == [b"page"] * 3
    assert len(made_so_far) == 2


def test_it_says_when_all_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watch_server, "PAUSE", 0.0)
    going.write(tmp_path, 1)
    with WatchServer(tmp_path) as server:
        with checkpoint.locked(tmp_path):
            server.service_actions()
            assert capsys.readouterr().err == ""
        server.service_actions()
        server.service_actions()
    assert capsys.readouterr().err == (
        f"{tmp_path}: interrupted, task 1/3, round 2/2, accuracy so far 0.600\n"
        "nothing is under way any more; Ctrl-C ends this page\n"
    )


def test_a_port_that_is_taken(server):
    with pytest.raises(UserError, match=r"--port \d+: cannot be served \(Address already in use\)"):
        WatchServer(server.directory, server.server_port)


def test_a_folder_without_a_run(command, tmp_path):
    code, out, err = command("watch", tmp_path)
    assert (code, out, err) == (2, "", f"error: {tmp_path}: holds no run\n")


@pytest.mark.slow
def test_the_command_ends_with_control_c(tmp_path):
    going.write(tmp_path, 1)
    command = [sys.executable, "-m", "fedmes", "watch", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        address = process.stdout.readline()
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/\n", address).groups()
        connection = http.client.HTTPConnection("127.0.0.1", int(port))

        def answered():
            connection.request("GET", f"/{token}/data")
            return connection.getresponse().read()

        try:
            until(answered, "an answer")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=HANGS)
        finally:
            process.kill()  # or one that hangs would be waited for
    assert process.returncode == 0 and "Traceback" not in said
    assert said.startswith(f"from another machine, first: ssh -N -L {port}:127.0.0.1:{port} ")


# --- the page -------------------------------------------------------------------------------------


def test_names_are_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    going.write(
        tmp_path, 1, error=evil, log=[LogLine(time=going.MOMENT, text=evil)],
        sites=[Site(name=evil, client=0, left_out=evil)],
    )  # fmt: skip
    text = live_page(tmp_path)
    assert evil not in text and text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4
    assert evil not in live_data(tmp_path)["state"] + live_data(tmp_path)["log"]


def test_a_federation_on_the_page(tmp_path):
    sites = [
        Site(name="north", client=0, last_seen=going.MOMENT, samples=1270, task=2, accuracy=0.913),
        Site(name="south", client=1, left_out="no answer", refusals=3),
    ]
    going.write(tmp_path, 1, sites=sites, rounds_total=None)
    page = Page(live_page(tmp_path))
    assert [cell["text"] for cell in page.all("th", scope="row")] == ["north", "south"]
    assert [cell["text"] for cell in page.all("td")] == [
        "2026-11-17 06:30:00 UTC", "2", "1,270", "0.913", "0", "",
        "never", "-", "-", "-", "3", "no answer",
    ]  # fmt: skip
    assert page.all("progress") == []  # nobody knows how many rounds there will be
    multiples = next(each for each in page.data["group"]["figures"] if each["id"] == "multiples")
    titles = [panel["title"] for panel in multiples["panels"]["oblivious"]]
    assert titles == ["client north", "client south"]


def test_before_the_first_round(tmp_path):
    going.write(tmp_path, 0, log=[], accuracy=None)
    page = Page(live_page(tmp_path))
    assert page.one("h1")["text"] == "Interrupted"
    assert page.data["group"]["figures"] == []


def test_a_comparison_on_the_page(tmp_path):
    made.write(tmp_path / "fedavg", made.random_accuracy(0, 1, 2, 3))
    made.write(tmp_path / "other", made.random_accuracy(0, 1, 2, 2))
    going.write(tmp_path / "fedmes", 2)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/config.toml").write_text("torn")
    page = Page(live_page(tmp_path))
    assert page.one("h1")["text"] == "2 of 3 runs finished"
    rows = [cell["text"] for cell in page.all("th", scope="row")]
    assert rows == ["fedavg", "fedmes", "other"]


def test_figures_are_of_runs_like_the_latest(tmp_path):
    going.write(tmp_path / "fedavg", 3, method="fedavg")
    going.write(tmp_path / "fedmes", 2, updated=going.MOMENT.replace(hour=7))
    going.write(tmp_path / "longer", 1, tasks=5)
    group = live_data(tmp_path)["group"]
    assert [run["label"] for run in group["runs"]] == ["fedavg", "fedmes"]
    lines = group["figures"][0]["panels"]["oblivious"][0]["series"]
    known = [sum(value is not None for value in line["y"]) for line in lines]
    assert known == [3, 2]
