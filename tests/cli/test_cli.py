"""The command line as a user meets it: real processes, real files."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from importlib import import_module

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from typer.main import get_command, get_group

from fedmes import __version__
from fedmes.cli import app as cli
from helpers.custom_tables import arrays
from helpers.forked import fedmes

SMALL = [
    "--clients",
    "2",
    "--tasks",
    "2",
    "--rounds",
    "1",
    "--epochs",
    "1",
    "--set",
    "model.width=8",
]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_imports_no_command(flag, tmp_path):
    """Options need pydantic, training needs torch: both take long to import."""
    code = (
        "import sys; from fedmes.cli import app\n"
        f"app.app([{flag!r}], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'numpy', 'pydantic', 'fedmes.config'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "federation" in done.stdout or done.stdout == f"{__version__}\n"


def test_torch_keeps_memory_between_steps_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", None)
    monkeypatch.setattr(cli, "app", lambda **_: None)
    # glibc is told, too: this process goes on as it is
    monkeypatch.setattr(os, "environ", {"GLIBC_TUNABLES": ""})
    for said in ("1000", "20"):
        with pytest.raises(SystemExit):
            cli.main()
        assert os.environ["MIMALLOC_PURGE_DELAY"] == said
        os.environ["MIMALLOC_PURGE_DELAY"] = "20"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
@pytest.mark.parametrize("told", [{}, {"MALLOC_TRIM_THRESHOLD_": "100000"}])
def test_freed_memory_is_kept_unless_told_otherwise(told):
    """By the pages that 64 MB get from the system when as many have just been freed."""
    code = (
        "import resource; from fedmes.cli.app import keep_freed_memory\n"
        "keep_freed_memory(); size = 2**26; b'x' * size\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; b'x' * size\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize())"
    )
    untold = {name: value for name, value in os.environ.items() if name not in cli.TOLD}
    done = subprocess.run([sys.executable, "-c", code], env=untold | told, capture_output=True)
    assert (int(done.stdout) < 2**20) == (not told)


def test_the_list_of_commands_is_that_of_their_modules():
    defined = set()
    for module, _ in cli.COMMANDS.values():
        defined |= get_group(import_module(f"fedmes.cli.{module}").app).commands.keys()
    assert defined == set(cli.COMMANDS)
    for name, (_, summary) in cli.COMMANDS.items():
        assert cli.implementation(name).help.split("\n\n")[0] == summary


def test_completion_knows_the_flags_of_a_command():
    complete = ShellComplete(get_command(cli.app), {}, "fedmes", "_FEDMES_COMPLETE")
    for before, begun, expected in (
        ([], "re", ["resume", "report", "reproduce"]),
        (["run"], "--me", ["--method", "--memory"]),
        (["data"], "f", ["fetch"]),
        (["nothing"], "--me", []),
    ):
        assert [each.value for each in complete.get_completions(before, begun)] == expected


@pytest.mark.slow
def test_every_help_has_an_example(tmp_path):
    for command in ("run", "resume", "extend", "compare", "list"):
        assert "Example: fedmes" in fedmes(command, "--help", cwd=tmp_path)[1]


@pytest.mark.slow
def test_list(tmp_path):
    status, out, _ = fedmes("list", cwd=tmp_path)
    assert status == 0
    assert all(
        name in out for name in ("fedavg", "fedmes", "split-digits", "synthetic", "cnn6", "linear")
    )
    assert "cnn6" not in fedmes("list", "methods", cwd=tmp_path)[1]
    assert fedmes("list", "colours", cwd=tmp_path)[0] == 2


@pytest.mark.slow
def test_run_prints_a_table_and_writes_a_directory(tmp_path):
    status, out, err = fedmes("run", *SMALL, cwd=tmp_path)
    assert status == 0
    first, second = err.splitlines()  # a line per task
    assert re.fullmatch(
        r"fedmes: round 1/2, task 1/2: all 2 clients; accuracy so far 0\.\d{3}; about \d+ s left",
        first,
    )
    assert re.fullmatch(
        r"fedmes: round 2/2, task 2/2: all 2 clients; accuracy so far 0\.\d{3}", second
    )
    for words in (
        "Acc_ALL",
        "no task id (oblivious)",
        "task id given (masked)",
        "network alone",
        "MB up",
        "memory: 30",
    ):
        assert words in out
    (directory,) = (tmp_path / "runs").iterdir()
    assert str(directory.relative_to(tmp_path)) in out
    printed = f"{json.loads((directory / 'result.json').read_text())['metrics']['oblivious']['acc_all']['mean']:.3f}"
    assert printed in out


@pytest.mark.slow
def test_quiet_prints_the_directory_only(tmp_path):
    status, out, _ = fedmes("run", "-q", *SMALL, "--out", "here", cwd=tmp_path)
    assert (status, out) == (0, "here\n")


@pytest.mark.slow
def test_configuration_file_and_options(tmp_path):
    """Options come before the file, the file before the benchmark; a plain value is a section's
    first key."""
    (tmp_path / "c.toml").write_text(
        'method = "fedavg"\nclients = 2\nmodel = "linear"\nrounds = 3\n[optim]\nlr = 0.5\n'
    )
    status, _, err = fedmes(
        "run", "c.toml", "--rounds", 1, "--set", "optim.name=sgd", "--out", "o", "-q", cwd=tmp_path
    )
    assert (status, err) == (0, "")
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert [result[key] for key in ("method", "clients", "model", "rounds")] == [
        "fedavg",
        2,
        "linear",
        1,
    ]
    assert '"sgd"\nlr = 0.5' in (tmp_path / "o/config.toml").read_text()


def test_own_model_and_own_method_from_files(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from fedmes.methods.fedavg import FedAvg\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh())\n"
        "        self.head = nn.Linear(7, classes)\n"
        "    def features(self, x):\n"
        "        return self.body(x)\n"
        "class Alone(FedAvg):\n"
        "    eval_model = 'personal'\n"
        "    def begin_round(self, state, broadcast, sums, ctx):\n"
        "        return self.start({n[2:]: t for n, t in state.items() if n.startswith('w.')})\n"
    )
    options = [option for option in SMALL if option not in ("--set", "model.width=8")]
    status, _, err = fedmes(
        "run",
        *options,
        "--model",
        "mine.py:Net",
        "--method",
        "mine.py:Alone",
        "--out",
        "o",
        "-q",
        cwd=tmp_path,
    )
    assert (status, err) == (0, "")
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert result["parameters"] == 64 * 7 + 7 + 7 * 10 + 10
    assert result["method"] == "mine.py:Alone"


@pytest.mark.slow
def test_compare_reuses_finished_runs(tmp_path):
    arguments = ("compare", *SMALL, "--methods", "fedavg,fedmes", "--out", "c")
    status, out, err = fedmes(*arguments, cwd=tmp_path)
    assert status == 0
    assert re.findall(r"(\w+): round \d/2, task (\d)/2", err) == [
        ("fedavg", "1"), ("fedavg", "2"), ("fedmes", "1"), ("fedmes", "2")
    ]  # fmt: skip
    assert "fedavg" in out
    assert "fedmes-nolip" in out
    first = (tmp_path / "c/fedavg/result.json").stat().st_mtime_ns
    (tmp_path / "c/fedmes/result.json").unlink()  # as if it had been interrupted
    assert fedmes(*arguments, cwd=tmp_path)[:2][0] == 0
    assert (tmp_path / "c/fedavg/result.json").stat().st_mtime_ns == first
    assert (tmp_path / "c/fedmes/result.json").is_file()
    hashes = {
        json.loads((tmp_path / f"c/{m}/result.json").read_text())["split_sha256"]
        for m in ("fedavg", "fedmes")
    }
    assert len(hashes) == 1


NAN = np.zeros((24, 4), np.float32)
NAN[5, 1] = np.nan
NO_TEST = np.tile([0, 0, 0, 0, 1, 1], 4)
NO_TEST[:6] = 0

BAD_OPTIONS = [
    (["--method", "fedmess"], "did you mean 'fedmes'"),
    (["--benchmark", "split-digit"], "did you mean 'split-digits'"),
    (["--model", "cnn"], "did you mean 'cnn"),
    (["--tasks", "6"], "split-digits has 5 tasks"),
    (["--clients", "0"], "clients: must be greater than 0"),
    (["--rounds", "-1"], "rounds: must be greater than 0"),
    (["--epochs", "0"], "epochs"),
    (["--batch", "0"], "batch"),
    (["--memory", "-5"], "memory.size"),
    (["--memory", "a"], "--memory"),
    (["--memory", "1,2,3"], "3 sizes for 10 clients"),
    (["--seeds", "1,1"], "seeds"),
    (["--seeds", "-1"], "seeds"),
    (["--set", "knn.theta=1.5"], "knn.theta"),
    (["--set", "knn.theta=-0.1"], "knn.theta"),
    (["--set", "knn.thetta=0.1"], "did you mean 'knn.theta'"),
    (["--set", "nonsense"], "key=value"),
    (["--set", "stream.classes_min=6"], "classes_min"),
    (["--set", "optim.lr=nan"], "optim.lr"),
    (["--set", "knn.features=conv"], "features"),
    (["--engine", "warp"], "engine.name"),
    (["--device", "cuda"], "no CUDA device"),
    (["--device", "tpu"], "device"),
    (["--data", "missing.npz"], "missing.npz"),
    (["--model", "cnn6", "--benchmark", "synthetic", "--set", "data.image_size=4"], "at least 8x8"),
    (["nothing.toml"], "nothing.toml: cannot be read"),
    (["--model", "mine.py:Net"], "no file mine.py"),
    (["--method", "mine.py"], "name the class in the file, too: mine.py:NAME"),
    (["--set", "stream.partition=dirichlet:-1"], "ALPHA from 0.001 to 1000000, not 'dirichlet:-1'"),
    (["--set", "stream.partition=dirichle"], "takes even or dirichlet:ALPHA"),
    (["--out", "x" * 300], "File name too long"),
    (["--data", "x" * 300], "File name too long"),
]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The message of a run that must end with status 2, in at most two lines, leaving nothing
    behind: the program as it is started, but in this process, since there are many such runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the program sets its own

    def there():
        return {p for p in tmp_path.rglob("*") if p.name != "__pycache__"}

    def call(*arguments):
        before = there()
        monkeypatch.setattr(sys, "argv", ["fedmes", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, ""), err
        assert "Traceback" not in err
        assert 1 <= len(err.strip().splitlines()) <= 2
        assert there() == before
        return err

    return call


@pytest.mark.slow
def test_bad_options_are_refused_in_one_line(refused):
    if __import__("torch").cuda.is_available():
        pytest.skip("this machine has a CUDA device, so asking for one is no error")
    for options, expected in BAD_OPTIONS:
        assert expected in refused(*options), options


@pytest.mark.parametrize("words", [["status"], ["report"], ["evaluate", "x.npz"], ["resume"]])
def test_a_folder_that_one_may_not_enter_is_named(words, tmp_path):
    locked = tmp_path / "locked"
    (locked / "run").mkdir(parents=True)
    without = []
    if os.getuid() == 0:  # who may enter everything, unless
        if shutil.which("setpriv") is None:
            pytest.skip("root enters every folder, and there is no setpriv to forbid it")
        rights = "-dac_override,-dac_read_search"
        without = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    command = [*without, sys.executable, "-m", "fedmes", words[0], str(locked / "run"), *words[1:]]
    locked.chmod(0)
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    finally:
        locked.chmod(0o700)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ") and str(locked) in done.stderr


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"y": None}, "has no array y"),
        ({"y": np.zeros(23, int)}, "x has 24 samples, y has 23"),
        ({"y": np.linspace(0, 1, 24)}, "y has type float64"),
        ({"y": np.where(NO_TEST == 1, 7, 0)}, "no training samples of it"),
        ({"split": NO_TEST}, "client 0, task 0 has no test data"),
        ({"x": NAN}, "NaN or infinite values in 1 samples, the first is sample 5"),
    ],
)
def test_bad_own_data_is_refused(refused, tmp_path, changes, expected):
    np.savez(tmp_path / "own.npz", **arrays(**changes))
    message = refused("--data", "own.npz")
    assert expected in message
    assert "own.npz" in message


@pytest.mark.slow
def test_own_data_says_how_many_clients_there_are(refused, tmp_path):
    np.savez(tmp_path / "own.npz", **arrays())
    assert "has 2; leave the option out" in refused("--data", "own.npz", "--clients", "3")
    assert "choose one" in refused("--data", "own.npz", "--benchmark", "synthetic")
    status, _, err = fedmes(
        "run", "--data", "own.npz", "--rounds", 1, "--epochs", 1, "--out", "o", "-q", cwd=tmp_path
    )
    assert (status, err) == (0, "")
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert [result[key] for key in ("clients", "tasks", "model", "benchmark")] == [
        2,
        2,
        "mlp",
        "own-data",
    ]


def test_toml_with_an_unknown_key_names_it(refused, tmp_path):
    (tmp_path / "c.toml").write_text("[optim]\nlearning_rate = 1\n")
    message = refused("c.toml")
    assert "unknown key 'optim.learning_rate' in c.toml" in message
    (tmp_path / "c.toml").write_text("roundz = 1\n")
    assert "did you mean 'rounds'" in refused("c.toml")
    (tmp_path / "c.toml").write_text("rounds = \n")
    assert "c.toml: not a TOML file" in refused("c.toml")


@pytest.mark.slow
def test_a_directory_with_another_run_is_left_alone(refused, tmp_path):
    assert fedmes("run", "-q", *SMALL, "--out", "o", cwd=tmp_path)[0] == 0
    kept = (tmp_path / "o/result.json").read_bytes()
    message = refused(*SMALL, "--rounds", 2, "--out", "o")
    assert "already holds a different run (rounds: 1 there, 2 here)" in message
    assert (tmp_path / "o/result.json").read_bytes() == kept
    # the same run may be done again
    assert fedmes("run", "-q", *SMALL, "--out", "o", cwd=tmp_path)[0] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    assert "holds no run" in refused(*SMALL, "--out", "other")
    assert "is a file" in refused(*SMALL, "--out", "other/thesis.txt")
