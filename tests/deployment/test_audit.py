"""The record of everything that left a site."""

import json
import stat

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.deployment import audit, guard
from fedmes.deployment.server import serve
from fedmes.errors import UserError
from helpers import growing, inprocess

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

NAMES = ("berlin", "lyon")


def entry(**more):
    return {"event": "left", "kind": "query", "federation": "f", "round": None, "bytes": {}, **more}


@pytest.mark.slow
def test_every_byte_that_leaves_is_on_record(tmp_path, command):
    """Of a whole federation: by class, and as many as the server counts."""
    folders = [growing.site_folder(tmp_path / name, name) for name in NAMES]
    for folder in folders:
        growing.write(folder.with_suffix(".npz"), [folder.name], 1)
    grid = inprocess.at_sites(folders)
    agreed = growing.federation("fedavg", NAMES, ["c0", "c1"], rounds=2)
    result = serve(grid, agreed, tmp_path / "server")
    found = [audit.read(folder) for folder in folders]
    left = sum((each.left() for each in found), start=type(found[0].left())())
    assert left.keys() == {"updates", "facts", "scores"}
    assert left["updates"] == result.communication["up_bytes"] > 0
    words = 0
    for message in grid.received:
        words += len(message.content["fedmes"]["json"].encode())
    assert left["facts"] + left["scores"] == words
    down = 0
    for each in found:
        for line in each.entries:
            if line["event"] == "asked" and line["kind"] == "train":
                down += line["bytes"]["broadcast"]
    assert down == result.communication["down_bytes"]
    events = [(line["kind"], line["event"]) for line in found[0].entries]
    kinds = ["query", "train", "train", "evaluate"]
    assert events == [(kind, event) for kind in kinds for event in ("asked", "left")]
    (first, second) = [line for line in found[0].entries if line["bytes"].get("updates")]
    assert (first["round"], second["round"]) == (0, 1)
    assert first["tensors"]["w.head.weight"] == ["float64", 2, 6]
    assert first["sha256"] != second["sha256"]
    status, out, err = command("site", "audit", folders[0])
    assert (status, err) == (0, "")
    assert f"{found[0].left()['updates']:,}" in out and found[0].sha256 in out
    status, out, _ = command("site", "audit", folders[0], "--json")
    assert json.loads(out)["entries"] == found[0].entries


def test_lines_are_added_and_private(tmp_path):
    for number in range(3):
        audit.append(tmp_path, entry(number=number))
    assert [each["number"] for each in audit.read(tmp_path).entries] == [0, 1, 2]
    for name in (audit.FILE, audit.HEAD):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (lambda lines: lines[:1] + lines[2:], "line 2 does not follow the one before"),
        (lambda lines: [lines[0].replace("left", "sent"), *lines[1:]], "line 2 does not follow"),
        (lambda lines: [*lines[:2], lines[2].replace("left", "sent")], "line 3 is not the one in"),
        (lambda lines: lines[:2], "2 lines of 3 are there: cut off"),
        (lambda lines: [*lines, '{"before": "0"}'], "line 4 does not follow"),
        (lambda lines: ["none", *lines], "line 1 does not follow"),
    ],
)
def test_a_change_shows(forge, says, tmp_path, command):
    for number in range(3):
        audit.append(tmp_path, entry(number=number))
    path = tmp_path / audit.FILE
    path.write_text("\n".join(forge(path.read_text().splitlines())) + "\n")
    status, out, err = command("site", "audit", tmp_path)
    assert (status, out) == (2, "") and says in err


def test_a_process_that_was_killed_while_it_wrote(tmp_path):
    """Half a line, and a line that the head does not know yet."""
    for number in range(2):
        audit.append(tmp_path, entry(number=number))
    head = (tmp_path / audit.HEAD).read_bytes()
    audit.append(tmp_path, entry(number=2))
    (tmp_path / audit.HEAD).write_bytes(head)
    with (tmp_path / audit.FILE).open("a") as file:
        file.write('{"before": "half')
    audit.append(tmp_path, entry(number=3))
    assert [each["number"] for each in audit.read(tmp_path).entries] == [0, 1, 2, 3]


def test_a_record_that_cannot_be_written_keeps_everything_at_the_site(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit, "append", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space.*, so nothing leaves"):
        guard._append(tmp_path, entry())


def test_a_site_that_nobody_has_asked(tmp_path, command):
    status, _, err = command("site", "audit", tmp_path)
    assert status == 2 and "nobody has asked this site for anything" in err
