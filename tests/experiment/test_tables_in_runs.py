"""Tables, texts and time series in whole runs: engines agree, and clients predict what they were
scored for."""

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.deployment import facts
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import agreement, prepare
from fedmes.experiment.prepare_site import prepare_site
from fedmes.models import MODELS
from fedmes.prediction.client import predict_files
from fedmes.prediction.evaluation import evaluate
from fedmes.prediction.export import as_input, export
from fedmes.scenario.summary import brief
from helpers.engine_runs import assert_equal_runs
from helpers.sequences import FILES, machines, notes, rows, vibrations, written

SHORT = {"rounds": 1, "epochs": 2, "batch": 8, "memory.size": 12, "model.width": 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of each file and of the run on it, by the network that was chosen."""
    places = {}
    for model, make in FILES.items():
        folder = tmp_path_factory.mktemp(model)
        options = SHORT | {"data": str(make(folder)), "engine.name": "loop"}
        options |= {"rounds": 6, "epochs": 10, "model.width": 16, "optim.lr": 0.01}
        result = runner.execute(prepare(config.load(None, options)), folder / "run")
        assert result.config.model.name == model
        places[model] = folder
    return places


@pytest.mark.parametrize("model", FILES)
def test_engines_agree(tmp_path, model):
    options = SHORT | {"data": str(FILES[model](tmp_path)), "engine.precision": "float64"}
    assert_equal_runs(prepare(config.load(None, options | {"model.dropout": 0.2})))


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("model", FILES)
def test_flower_gives_the_same_weights(tmp_path, model):
    from helpers import flower_runs

    options = SHORT | {"data": str(FILES[model](tmp_path))}
    flower_runs.loop(tmp_path / "loop", options)
    flower_runs.flower(tmp_path / "flower", options)
    files = [tmp_path / engine / "seed0/client1/model.safetensors" for engine in ("loop", "flower")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("model", FILES)
def test_a_client_predicts_from_the_file_it_was_trained_on(trained, model):
    """And is scored with it; what is exported says the same."""
    folder = trained[model]
    (file,) = [path for path in folder.iterdir() if path.is_file()]
    client = fedmes.load_client(folder / "run/seed0/client0")
    assert client.normalisation is None or client.normalisation.unit == 1
    labels = [prediction.label for _, prediction in predict_files(client, [file])]
    right = [said == row[2] for said, row in zip(labels, rows(), strict=True)]
    found = evaluate(client, file)
    assert found.samples == 80 and found.accuracy() == np.mean(right) > 0.7
    samples = client.samples(file)
    inside = client.standalone()(as_input(samples, client)).numpy()
    np.testing.assert_allclose(inside, client.predict(samples).probabilities, atol=1e-6)


@pytest.mark.slow
def test_a_table_leaves_with_its_normalisation(trained):
    pytest.importorskip("onnxruntime", reason="fedmes[export] is not installed")
    client = fedmes.load_client(trained["mlp"] / "run/seed0/client0")
    assert export(client, trained["mlp"] / "client.onnx") < 1e-5


@pytest.mark.slow
def test_rows_are_matched_by_name(trained, tmp_path):
    client = fedmes.load_client(trained["mlp"] / "run/seed0/client0")
    row = {"metal": ["steel"], "wear": [0.001], "force": [6000.0]}
    expected = client.predict(np.array([6000.0, 0.001, 0.0, 1.0], np.float32))
    assert client.columns == ("force", "wear", "metal=brass", "metal=steel")
    np.testing.assert_array_equal(client.predict(row).probabilities, expected.probabilities)
    short = written(tmp_path / "short.csv", ("wear", "metal"), [(0.1, "steel")])
    (item, nothing), *_ = predict_files(client, [short])
    assert (nothing, item.reason) == (None, "has no column force")
    with pytest.raises(UserError, match=r"short.csv: has no column force"):
        evaluate(client, short)
    good = written(tmp_path / "good.csv", row, [("steel", 0.001, 6000.0)])
    with pytest.raises(UserError, match=r"good.csv: has no column y \(or label\)"):
        evaluate(client, good)
    series = fedmes.load_client(trained["cnn1d"] / "run/seed0/client0")
    with pytest.raises(UserError, match="a table, but this client has learned from none"):
        series.predict(good)
    with pytest.raises(UserError, match="time series of 16 steps and 2 channels"):
        series.predict(np.zeros((3, 15, 2), np.float32))
    assert len(series.predict(np.zeros((3, 16, 2), np.float32)).show().axes[0].lines) > 6


@pytest.mark.slow
def test_texts_from_text_files(trained, tmp_path):
    client = fedmes.load_client(trained["text"] / "run/seed0/client0")
    (tmp_path / "today.txt").write_text("A scratch, AGAIN!", encoding="utf-8")
    one = client.predict(tmp_path / "today.txt")
    same = client.predict({"text": ["a scratch again"]})
    np.testing.assert_array_equal(one.probabilities, same.probabilities)
    assert one.labels == ["worn"]
    with pytest.raises(UserError, match="vectors or texts, not pictures"):
        one.show()


def test_padding_changes_nothing():
    net = MODELS["text"]((4,), 3)
    short = net.features(torch.tensor([[7, 9]]))
    torch.testing.assert_close(net.features(torch.tensor([[7, 9, 0, 0]])), short)
    assert bool(net.features(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all())


@pytest.mark.parametrize("model", FILES)
def test_sites_agree_on_what_a_simulation_reads(tmp_path, model):
    """By sums alone, to the last bit; one site has seen one metal less."""
    make = FILES[model]
    (tmp_path / "sites").mkdir()
    whole = make(tmp_path)
    paths = []
    for site in ("north", "south"):
        own = _of_site(whole, site, tmp_path / "sites")
        facts.facts_of(site, own).write(tmp_path / f"{site}.toml")
        paths.append(tmp_path / f"{site}.toml")
    made = facts.federation_config(paths, SHORT)
    expected = agreement(config.load(None, SHORT | {"data": str(whole)})).federation
    for name in ("columns", "shape", "mean", "std"):
        assert getattr(made.federation, name) == getattr(expected, name), name
    resolved = made.with_({"model.name": model})
    data = {"north": own.with_stem("north")}
    site, refused = prepare_site(resolved, data, tmp_path / "features")
    assert refused == {}
    assert site.source.dataset.shape == tuple(expected.shape)
    assert len(site.federations[0].stream.clients[0].tasks) == 2


def _of_site(whole, site, folder):
    """A site's part of a file; that of a table names no client, and south knows steel only."""
    if whole.suffix == ".npz":
        arrays = dict(np.load(whole))
        own = arrays["client"] == site
        np.savez(folder / f"{site}.npz", **{name: values[own] for name, values in arrays.items()})
        return folder / f"{site}.npz"
    head, *lines = whole.read_text().splitlines()
    mine = [line.removeprefix(f"{site},") for line in lines if line.startswith(site)]
    text = "\n".join([head.removeprefix("client,"), *mine]) + "\n"
    (folder / f"{site}.csv").write_text(text)
    return folder / f"{site}.csv"


def test_further_tasks_of_the_same_table(tmp_path):
    """Columns stand in another order there, and a metal is new."""
    first = machines(tmp_path)
    cells = [(n, "gold", "north", "mar", "ok", 5000 + n) for n in range(10)]
    names = ("wear", "metal", "client", "task", "y", "force")
    more = written(tmp_path / "march.csv", names, cells)
    options = SHORT | {"data": str(first), "data.more": [str(more)]}
    with pytest.warns(RuntimeWarning, match="metal has values that are new"):
        prepared = prepare(config.load(None, options))
    assert prepared.source.dataset.x[-1].tolist() == [5009, 9, 0, 0]
    options["data.more"] = [str(vibrations(tmp_path))]
    with pytest.raises(UserError, match="can follow only what is of the same kind"):
        prepare(config.load(None, options))


def test_a_run_says_what_it_will_train_on(tmp_path):
    prepared = prepare(config.load(None, SHORT | {"data": str(notes(tmp_path))}))
    lines = list(brief("notes", prepared.source.dataset, prepared.federations[0].stream.clients))
    assert lines == [
        "notes: 2 clients, 2 tasks, 4 classes, 80 samples",
        "texts, of each the first 6 words",
        "  north: jan (16 + 4), feb (16 + 4)",
        "  south: jan (16 + 4), feb (16 + 4)",
    ]


@pytest.mark.flower
def test_a_folder_of_tables_becomes_sites(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")
    from fedmes.deployment.up import sites_of_custom_data

    (tmp_path / "sites").mkdir()
    whole = machines(tmp_path)
    for site in ("north", "south"):
        _of_site(whole, site, tmp_path / "sites")
    options = SHORT | {"data": str(tmp_path / "sites"), "engine.name": "flower"}
    known, sites = sites_of_custom_data(config.load(None, options), tmp_path / "sites")
    assert sites["north"] == {"data": str(tmp_path / "sites/north.csv")}
    assert known.federation.columns == ["force", "wear", "metal=brass", "metal=steel"]
