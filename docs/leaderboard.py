"""docs/leaderboard.md, made of the runs in results/: `python docs/leaderboard.py`."""

from itertools import chain
from pathlib import Path

from fedmes.common.files import replace_text
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.methods import METHODS
from fedmes.report.collect import Run, title_of
from fedmes.report.table import Number, Table, as_markdown
from fedmes.results import run_dir
from fedmes.results.labels import SCORE_TAGS
from fedmes.studies.cells import computed_on, metric
from fedmes.studies.runs import Scope, look, wanted

ROOT = Path(__file__).parents[1]
RESULTS = Path("results")
STUDIES = ("table1", "beyond")
NUMBERS = {"acc_all": "Acc", "acc_final": "final", "fr": "FR"}

INTRO = """\
# Leaderboard

`python docs/leaderboard.py` makes this page of the runs in [results/](../results/README.md), and
`tests/studies/test_leaderboard.py` compares both. In the rendered documentation a click on a head sorts.

* Acc: the mean accuracy on the tasks so far, over all tasks and clients (the paper's `Acc_ALL`); final: the same after
  the last task; FR: how much is forgotten. Each with its standard deviation over seeds, where there are several.
* Without a task id all classes met so far are candidates, with it those of the task.
* MB: what all clients of a seed send and receive. Seconds: training, all seeds together; those of a CPU say little,
  since it had other work; so do those of `fedmes-plus` and on `fcil-cifar100-10x10` from scratch, which shared the GPU
  with other runs.
* Methods in one table have learned the same splits from the same initial weights. `joint` keeps all data, so it does
  not compete.
* On class-incremental benchmarks (`fcil-...`) the global model predicts; `local`, `local-er` and `joint` have none and
  predict with the client's own.
* `fedweit` on Split CIFAR-100 with 10 clients never learns in two of the five seeds, at the rate that was chosen for it
  on another one ([what it has at a third of that rate](paper-results.md)).
* A run whose options were not selected by the protocol has no row: `knn-per` and `flwf` on Split CIFAR-100 are in
  [paper-results.md](paper-results.md), `glfc` and `icarl` with a memory of 2,000 in
  [benchmarks.md](benchmarks.md#from-scratch).

"""

ADD = """\
## Add a method

1. Write it as one file in `src/fedmes/methods/`, with its options, its row in [methods.md](methods.md) and a second
   implementation in `tests/oracle/` ([own-method.md](own-method.md), [CONTRIBUTING.md](../CONTRIBUTING.md)).
2. Choose its options as all others were chosen, on seeds that no table has ([reproduce.md](reproduce.md#the-protocol)).
3. Run it where you want to see it, with the seeds that are there, for example
   `fedmes compare --benchmark fcil-digits --methods NAME --seeds 0,1,2 --out results/leaderboard/fcil-digits`.
4. Commit `config.toml`, `result.json` and `accuracy.npz` of each run, and the page that `python docs/leaderboard.py`
   makes, and open a pull request. Who reviews it runs one of the commands again.
"""


def runs() -> list[Run]:
    """Those of the studies that compare methods, and those that were handed in."""
    found: dict[str, Run] = {}
    for trial in chain.from_iterable(wanted(Scope(name, RESULTS)) for name in STUDIES):
        if (run := look(trial).run) is not None:
            found[run.directory] = run
    results = ROOT / RESULTS
    handed_in = sorted(results.glob("leaderboard/*/*/result.json"))
    # of the class-incremental runs from scratch, those with the benchmark's own options
    from_scratch = sorted(results.glob("runs/fcil-*/*/result.json"))
    plain = [path for path in from_scratch if path.parent.name in METHODS]
    for path in [*plain, *handed_in]:
        directory = path.parent.relative_to(ROOT)
        found[str(directory)] = Run.of(run_dir.load(path.parent), directory=directory.as_posix())
    return list(found.values())


def by_setting(members: list[Run]) -> dict[str, list[Run]]:
    """Runs that may be compared, the best first."""
    settings: dict[str, list[Run]] = {}
    splits: dict[str, str | None] = {}
    for run in members:
        title = title_of(run.config) + network(run)
        if splits.setdefault(title, run.result.split_sha256) != run.result.split_sha256:
            raise SystemExit(f"{run.directory}: other splits than the others of {title}")
        settings.setdefault(title, []).append(run)
    return {title: sorted(found, key=accuracy, reverse=True) for title, found in settings.items()}


def network(run: Run) -> str:
    """Where it is not the benchmark's own."""
    name = run.config.model.name
    own = BENCHMARKS[run.config.benchmark].defaults["model"]["name"]
    return "" if name == own else f" · {name}"


def accuracy(run: Run) -> float:
    return run.acc_all("oblivious")[0]


def table(title: str, members: list[Run]) -> Table:
    heads = ["method"]
    for tag in SCORE_TAGS.values():
        heads += [f"{name}, {tag}" for name in NUMBERS.values()]
    heads += ["MB up", "MB down", "seconds", "computed on", "command"]
    rows = []
    for run in members:
        scores = [metric(run, score, key) for score in SCORE_TAGS for key in NUMBERS]
        sent = run.result.communication
        costs = [Number(sent[way] / 1e6, digits=1) for way in ("up_bytes", "down_bytes")]
        seconds = Number(run.result.seconds["train"], digits=0)
        again = f"`fedmes run {run.directory}/config.toml`"
        link = f"[{run.config.method}](../{run.directory}/result.json)"
        rows.append([link, *scores, *costs, seconds, computed_on(run), again])
    return Table(title, heads, rows)


def overview(settings: dict[str, list[Run]]) -> Table:
    """Method by benchmark."""
    names = []
    for first, *_ in settings.values():
        names.append(f"{first.config.benchmark}{network(first)}, {first.config.clients}")
    rows = {}
    for column, members in enumerate(settings.values()):
        for run in members:
            row = rows.setdefault(run.config.method, [run.config.method, *["-"] * len(names)])
            row[column + 1] = metric(run, "oblivious", "acc_all")
    title = "Acc without a task id, by benchmark and number of clients"
    return Table(title, ["method", *names], sorted(rows.values(), key=lambda row: str(row[0])))


def page() -> str:
    settings = by_setting(runs())
    tables = [overview(settings), *(table(*setting) for setting in settings.items())]
    shown = "\n".join(map(as_markdown, tables)).replace("### ", "## ")
    return f"{INTRO}{shown}\n{ADD}"


if __name__ == "__main__":
    replace_text(ROOT / "docs/leaderboard.md", page())
