"""The result directory that users' scripts depend on."""

import csv
import hashlib
import json
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedmes
from fedmes import config
from fedmes.results import metrics, run_dir
from helpers.waiting import HANGS

SMALL = {
    "clients": 3,
    "tasks": 2,
    "rounds": 2,
    "epochs": 1,
    "memory": 20,
    "model": {"name": "mlp", "width": 8},
}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    fedmes.run(**SMALL, seeds=[0, 3], out=out)
    return out


def test_result_json_holds_what_the_contract_names(run_directory):
    content = json.loads((run_directory / "result.json").read_text())
    expected = {
        "benchmark": "split-digits", "method": "fedmes", "model": "mlp", "clients": 3, "tasks": 2, "rounds": 2,
        "epochs": 1, "seeds": [0, 3], "engine": "stacked", "device": "cpu", "parameters": 64 * 8 + 8 + 72 + 90,
    }  # fmt: skip
    assert {key: content[key] for key in expected} == expected
    for family in ("metrics", "metrics_nolip"):
        for score in ("oblivious", "masked"):
            numbers = content[family][score]
            assert set(numbers) == {
                "acc_all",
                "fr",
                "acc_final",
                "fr_final",
                "bwt",
                "acc_task",
                "fr_task",
                "acc_client",
            }
            assert set(numbers["acc_all"]) == {"mean", "std"}
            assert [len(numbers[name]) for name in ("acc_task", "fr_task", "acc_client")] == [
                2,
                2,
                3,
            ]
    timed = {"train", "eval", "compile", "total", "communication_modelled", "slowest_client"}
    assert set(content["seconds"]) == timed


def test_bytes_and_modelled_time_are_counted_from_the_tensors(run_directory):
    content = json.loads((run_directory / "result.json").read_text())
    once = 4 * content["parameters"]
    assert content["communication"] == {
        "up_bytes": 3 * 2 * 2 * once,
        "down_bytes": 3 * 2 * 2 * once,
    }
    assert content["seconds"]["communication_modelled"] == pytest.approx(
        2 * 2 * 2 * once * 8 / 40e6
    )


def test_metrics_come_from_the_stored_accuracies(run_directory):
    content = json.loads((run_directory / "result.json").read_text())
    with np.load(run_directory / "accuracy.npz") as arrays:
        assert set(arrays.files) == {"acc", "acc_masked", "acc_nolip", "acc_masked_nolip"}
        acc = arrays["acc"]
        assert acc.shape == (2, 3, 2, 2)
        assert np.isnan(acc[:, :, 0, 1]).all()
        assert np.isfinite(acc[:, :, [0, 1, 1], [0, 0, 1]]).all()
        assert content["metrics"]["oblivious"] == metrics.summary(acc)
        assert content["metrics_nolip"]["masked"] == metrics.summary(arrays["acc_masked_nolip"])


@pytest.mark.slow
def test_the_network_is_never_worse_with_the_task_id(tmp_path):
    """The choice is among fewer of the same classes, whatever else the task has for others."""
    options = SMALL | {"benchmark": "synthetic", "stream": {"classes_max": 3}}
    own, whole = (
        fedmes.run(**options, eval={"task_classes": rule}, out=tmp_path / rule).accuracy
        for rule in ("own", "all")
    )
    assert (np.nan_to_num(own["acc_masked_nolip"]) >= np.nan_to_num(own["acc_nolip"])).all()
    np.testing.assert_array_equal(own["acc"], whole["acc"])  # the same training
    assert (
        np.nan_to_num(own["acc_masked_nolip"]) >= np.nan_to_num(whole["acc_masked_nolip"])
    ).all()
    assert (own["acc_masked_nolip"] != whole["acc_masked_nolip"])[~np.isnan(own["acc"])].any()


def test_rounds_csv_has_a_row_a_seed_task_round_and_client(run_directory):
    with (run_directory / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [(row["seed"], row["task"], row["round"], row["client"]) for row in rows]
    assert len(rows) == len(set(keys)) == 2 * 2 * 2 * 3
    assert {row["seed"] for row in rows} == {"0", "3"}
    assert all(1 < float(row["lambda"]) < 2 and float(row["distance"]) > 0 for row in rows)
    assert all(float(row["rule2"]) == 0 for row in rows if row["task"] == "0")
    assert {row["left_out"] for row in rows} == {"0"}


def test_without_rounds_csv_the_result_still_knows_what_a_study_needs(run_directory, tmp_path):
    """What is kept for a record: three small files."""
    for name in ("config.toml", "result.json", "accuracy.npz"):
        (tmp_path / name).write_bytes((run_directory / name).read_bytes())
    whole, kept = run_dir.load(run_directory), run_dir.load(tmp_path)
    rows = whole.rounds
    assert kept.rounds == []
    for name in ("lambda", "rule2", "distance"):
        for task, mean in enumerate(kept.by_task[name]):
            assert mean == pytest.approx(
                np.mean([float(row[name]) for row in rows if int(row["task"]) == task])
            )
    slowest = {}
    for row in rows:
        place = row["seed"], row["task"], row["round"]
        slowest[place] = max(slowest.get(place, 0), float(row["seconds"]))
    seeds = len({row["seed"] for row in rows})
    assert kept.seconds["slowest_client"] == pytest.approx(sum(slowest.values()) / seeds, abs=1e-4)


def test_split_files_have_the_stated_hash(run_directory):
    content = json.loads((run_directory / "result.json").read_text())
    hashes = [
        hashlib.sha256((run_directory / f"seed{s}/split.json").read_bytes()).hexdigest()
        for s in (0, 3)
    ]
    assert hashes[0] != hashes[1]
    assert content["split_sha256"] == hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def test_one_seed_states_its_split_file_hash_itself(tmp_path):
    result = fedmes.run(**SMALL, out=tmp_path / "out")
    assert (
        result.split_sha256
        == hashlib.sha256((tmp_path / "out/seed0/split.json").read_bytes()).hexdigest()
    )


def test_client_directory(run_directory):
    folder = run_directory / "seed0/client1"
    about = json.loads((folder / "client.json").read_text())
    assert about["class_names"] == list("0123456789")
    assert len(about["seen"]) == 4
    assert about["knn"]["theta"] == 0.5
    assert len(about["normalisation"]["mean"]) == 1
    with np.load(folder / "memory.npz") as memory:
        assert memory["x"].shape == (20, 8, 8, 1)
        assert memory["x"].dtype == np.uint8
        assert np.bincount(memory["task"]).tolist() == [10, 10]
        assert set(memory["y"].tolist()) <= set(about["seen"])
    model = load_file(folder / "model.safetensors")
    assert set(model) == set(load_file(run_directory / "seed0/initial.safetensors"))


def test_the_stored_configuration_runs_again_with_the_same_bytes(run_directory, tmp_path):
    """The same command twice: equal accuracies and equal safetensors files."""
    again = tmp_path / "again"
    fedmes.run(run_directory / "config.toml", out=again)
    with np.load(run_directory / "accuracy.npz") as one, np.load(again / "accuracy.npz") as two:
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])
    files = sorted(p.relative_to(run_directory) for p in run_directory.rglob("*.safetensors"))
    assert len(files) == 2 * (2 + 3) + 1  # the state that extend goes on from
    for file in files:
        assert (run_directory / file).read_bytes() == (again / file).read_bytes()


def test_configuration_file_is_whole_and_names_versions(run_directory):
    content = tomllib.loads((run_directory / "config.toml").read_text())
    assert {"torch", "numpy", "python", "fedmes"} <= set(content["versions"])
    assert content["engine"] == {
        "name": "stacked",
        "precision": "float32",
        "stack": 6,
        "compile": False,
    }
    assert content["device"] == "cpu"
    assert config.load(run_directory / "config.toml", {}).model_dump()["knn"]["k"] == 9


def test_loading_a_result_gives_the_same_numbers(run_directory):
    loaded = run_dir.load(run_directory)
    content = json.loads((run_directory / "result.json").read_text())
    assert loaded.as_dict() == content


def test_a_result_shows_its_scores(run_directory):
    loaded = run_dir.load(run_directory)
    assert repr(loaded).startswith("<fedmes on split-digits: oblivious Acc_ALL 0.")
    assert f"{loaded.metrics['masked']['acc_final']['mean']:.3f}" in repr(loaded)


def test_models_can_be_left_out(tmp_path):
    fedmes.run(**SMALL, output={"models": "none"}, out=tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert (tmp_path / "out/result.json").is_file()


def test_methods_share_split_and_initial_weights(run_directory, tmp_path):
    fedmes.run(**SMALL, method="fedavg", seeds=[0, 3], out=tmp_path / "out")
    for name in ("seed3/split.json", "seed3/initial.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (run_directory / name).read_bytes()
    with np.load(tmp_path / "out/accuracy.npz") as arrays:
        assert set(arrays.files) == {"acc", "acc_masked"}


def test_seeds_together_equal_seeds_alone(run_directory, tmp_path):
    result = fedmes.run(**SMALL, seeds=[3], out=tmp_path / "out")
    with np.load(run_directory / "accuracy.npz") as arrays:
        np.testing.assert_array_equal(arrays["acc"][1], result.acc[0])


def test_clients_with_different_numbers_of_tasks(own_npz, tmp_path):
    result = fedmes.run(
        data=str(own_npz), model="linear", rounds=2, epochs=2, memory=6, out=tmp_path / "out"
    )
    assert result.acc.shape == (1, 2, 3, 3)
    assert np.isnan(result.acc[0, 1, 2]).all()
    assert np.isfinite(result.acc[0, 0, 2]).all()
    final = [np.nanmean(result.acc[0, 0, 2]), np.nanmean(result.acc[0, 1, 1])]
    assert result.metrics["oblivious"]["acc_final"]["mean"] == pytest.approx(np.mean(final))
    assert result.config.clients == 2
    assert result.config.tasks == 3
    memory = np.load(tmp_path / "out/seed0/client1/memory.npz")
    assert np.bincount(memory["task"]).tolist() == [3, 3]  # m // T with the client's own T


@pytest.mark.slow
def test_a_file_that_several_processes_write_is_always_whole(tmp_path):
    """As where two terminals run studies that share a page."""
    write = "import sys; from pathlib import Path; from fedmes.common.files import replace_text"
    write += "; print(flush=True); input()"
    write += "; [replace_text(Path(sys.argv[1]), sys.argv[2] * 1000) for _ in range(200)]"
    page, pipes = tmp_path / "page.md", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    both = [
        subprocess.Popen([sys.executable, "-c", write, str(page), letter], **pipes)
        for letter in "ab"
    ]
    for process in both:
        process.stdout.readline()  # it is ready
    for process in both:
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait(timeout=HANGS) for process in both] == [0, 0]
    assert page.read_text() in ("a" * 1000, "b" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
