"""Classes typed into the cells of a notebook, in a real Jupyter kernel."""

import json
from textwrap import dedent

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

CELLS = [
    """
    import json
    import numpy as np
    from torch import nn
    import fedmes
    from fedmes.common import plugins
    from fedmes.methods import FedAvg

    class Small(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh())
            self.head = nn.Linear(5, classes)

        def features(self, x):
            return self.body(x)
    """,
    """
    class Half(FedAvg):
        share = 0.5

        def step(self, state, broadcast, batch, mem, ctx):
            return super().step(state, broadcast, batch, mem, ctx._replace(lr=self.share * ctx.lr))
    """,
    """
    class Quarter(Half):
        share = 0.25

    def small(shape, classes):
        return Small(shape, classes)
    """,
    """
    tiny = dict(clients=2, tasks=2, rounds=1, epochs=1, stream={"frac": 2}, engine={"precision": "float64"})
    runs = {}
    for name in ("loop", "stacked"):
        engine = tiny["engine"] | {"name": name}
        runs[name] = fedmes.run(model=Small, method=Half, out=name, **tiny | {"engine": engine})
    made = fedmes.run(model=small, method="fedavg", out="made", **tiny)
    runs["in its own place"] = fedmes.run(model=Small, method=Half, resume=True, **tiny)
    """,
    """
    client = fedmes.load_client("loop/seed0/client0", model=Small, method=Half)
    probabilities = client.predict(np.zeros((2, 8, 8, 1), np.uint8)).probabilities
    """,
    """
    try:
        fedmes.run("loop/config.toml")
    except fedmes.UserError as error:
        refused = str(error)
    """,
    """
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():  # what the kernel answers to <Tab>
        offered = [found.text for found in get_ipython().Completer.completions("fedmes.", len("fedmes."))]
        call = "fedmes.run(opt"
        named = [found.text for found in get_ipython().Completer.completions(call, len(call))]
    """,
    """
    fedmes.load("loop").plot("matrix")
    """,
    """
    fedmes.load("loop")
    """,
    """
    print(json.dumps({
        "acc": {name: run.acc.tolist() for name, run in runs.items()},
        "config": [made.config.model.name, runs["loop"].config.method, runs["loop"].config.model.name],
        "sum": probabilities.sum(-1).tolist(),
        "refused": refused,
        "sources": [plugins.source(thing) for thing in (Small, Half, Quarter, small)],
        "tab": offered,
        "named": named,
    }))
    """,
]  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the last cell prints, after all cells have run."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(dedent(cell).strip()) for cell in CELLS]
    )
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
    (output,) = notebook.cells[-1].outputs
    outputs = {"trained": notebook.cells[3].outputs, "figure": notebook.cells[-3].outputs}
    return json.loads(output.text) | outputs | {"result": notebook.cells[-2].outputs}


def test_a_model_and_a_method_of_a_cell_train_in_both_engines(told):
    loop, stacked, unplaced = (np.array(acc) for acc in told["acc"].values())
    assert loop.shape == (1, 2, 2, 2) and np.isfinite(loop[:, :, 1]).all()
    np.testing.assert_array_equal(loop, stacked)
    np.testing.assert_array_equal(loop, unplaced)
    assert told["config"] == ["<python>.py:small", "<python>.py:Half", "<python>.py:Small"]


def test_a_client_of_such_a_run_predicts(told):
    np.testing.assert_allclose(told["sum"], [1, 1])


def test_a_configuration_alone_does_not_know_the_class(told):
    assert told["refused"] == (
        "method '<python>.py:Half' is from a notebook; pass the class itself: fedmes.run(method=Half, ...)"
    )


def test_the_source_is_the_cells(told):
    """A class's own cell, and those of the classes it builds on."""
    model, half, quarter = (dedent(cell).strip() for cell in CELLS[:3])
    sources = [text.strip() for text in told["sources"]]
    assert sources[:2] == [model, half]
    # a class without a function does not tell its cell, but its base does
    assert sources[2] == half
    assert sources[3] == quarter


def test_completion_offers_what_there_is(told):
    assert {"run", "extend", "load_client", "Result", "UserError"} <= set(told["tab"])
    assert not set(told["tab"]) & {"Any", "TYPE_CHECKING", "annotations", "errors"}


def test_completion_offers_options_by_name(told):
    assert "optim=" in told["named"]


def test_a_figure_and_a_result_show_themselves(told):
    (figure,) = told["figure"]
    assert figure["data"]["image/png"].startswith("iVBORw0KGgo")
    (result,) = told["result"]
    assert result["data"]["text/html"].startswith("<table><caption>split-digits")


def test_a_bar_below_the_cell_is_gone_when_the_run_is_over(told):
    bars = [each for each in told["trained"] if each["output_type"] == "display_data"]
    assert len(bars) == 4
    assert all(bar["data"] == {"text/html": "", "text/plain": ""} for bar in bars)
