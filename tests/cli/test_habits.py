"""Small habits that people bring along."""

import pytest

from fedmes import config
from fedmes.cli import app as cli
from fedmes.errors import UserError


def call(monkeypatch, capsys, *arguments):
    status, out, _ = call_all(monkeypatch, capsys, *arguments)
    return status, out


def call_all(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["fedmes", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, *capsys.readouterr()


def test_h_is_help(monkeypatch, capsys):
    for arguments in (["-h"], ["list", "-h"], ["data", "check", "-h"]):
        status, out = call(monkeypatch, capsys, *arguments)
        assert status == 0
        assert "Usage" in out


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("rnu", ["error: unknown command 'rnu'; did you mean 'run'?"]),
        ("data chekc", ["error: unknown command 'chekc'; did you mean 'check'?"]),
        (
            "run --clients two",
            [
                "error: Invalid value for '--clients': 'two' is not a valid integer.",
                "`fedmes run -h` lists what there is",
            ],
        ),
        (
            "federation up --zzz",
            ["error: No such option '--zzz'.", "`fedmes federation up -h` lists what there is"],
        ),
    ],
)
def test_misspelt_words_are_said_in_two_lines(words, lines, monkeypatch, capsys):
    assert call_all(monkeypatch, capsys, *words.split()) == (2, "", "\n".join(lines) + "\n")


@pytest.mark.parametrize("words", [[], ["data"], ["federation"]])
def test_without_any_words_a_group_shows_its_help(words, monkeypatch, capsys):
    _, *texts = call_all(monkeypatch, capsys, *words)
    assert "Usage" in "".join(texts) and "Traceback" not in "".join(texts)


def test_list_options(monkeypatch, capsys):
    status, out = call(monkeypatch, capsys, "list", "options")
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("optim.gamma = 0.9 ")]
    _, everything = call(monkeypatch, capsys, "list")
    assert "optim.gamma" not in everything


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("lr", "unknown key 'lr'; did you mean 'optim.lr'?"),
        ("theta", "unknown key 'theta'; did you mean 'knn.theta'?"),
        ("train.lr", "unknown key 'train.lr'; did you mean 'optim.lr'?"),
        ("zzz.pull", "unknown key 'zzz'; `fedmes list options` shows all"),
    ],
)
def test_a_key_without_its_section(key, words):
    with pytest.raises(UserError) as error:
        config.load(None, {key: 1})
    assert str(error.value) == words
