"""Tables, texts and time series: what a row becomes, by hand."""

import math
import zlib

import numpy as np
import pytest

from fedmes.data import in_memory, tables, words
from fedmes.data.custom import UNSAID, read
from fedmes.data.dataset import ChannelSums, statistics
from fedmes.errors import UserError
from fedmes.scenario.custom import form_of, open_custom

HEAD = "client,task,y,force,colour,on\n"
ROWS = (
    "a,t,up,1,red,true\na,t,down,3,blue,false\na,t,up,5,red,TRUE\n"
    "b,t,down,7,red,0\nb,t,up,9,blue,1\nb,t,down,11,red,1\n"
)


def written(folder, text, name="table.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_values_and_booleans_by_hand(tmp_path):
    found = read(written(tmp_path, HEAD + ROWS), None)
    assert found.dataset.columns == ("force", "colour=blue", "colour=red", "on")
    assert found.dataset.x.dtype == np.float32
    assert found.dataset.x[:3].tolist() == [[1, 0, 1, 1], [3, 1, 0, 0], [5, 0, 1, 1]]
    assert found.dataset.class_names == ("down", "up")
    assert found.client.tolist() == [0, 0, 0, 1, 1, 1] and found.client_names == ("a", "b")
    assert set(found.test) == {UNSAID}


def test_columns_are_standardised_by_training_rows_and_values_stay(tmp_path):
    rows = [row + (",test" if n == 1 else ",train") for n, row in enumerate(ROWS.split())]
    rows[5] += "\n" + rows[5].replace("train", "test").replace("11", "1000")
    text = HEAD.strip() + ",split\n" + "\n".join(rows) + "\na,t,down,3,blue,0,train\n"
    source = open_custom(written(tmp_path, text), None, rounds=1)
    found = source.normalisation(source.stream(0))
    # training rows have forces 1 5 7 9 11 3 and are on in 4 of 6 of them
    assert found.unit == 1 and not found.of_pixels
    assert found.mean == ((6.0, 0.0, 0.0, 4 / 6),)
    assert found.std == ((math.sqrt(35 / 3), 1.0, 1.0, math.sqrt(2 / 9)),)


def test_sums_of_floats_are_exact_wherever_the_parts_are():
    draw = np.random.default_rng(3)
    x = (draw.normal(size=(1000, 3)) * 10.0 ** draw.integers(-40, 15, (1000, 3))).astype("f4")
    x[0] = [2.0**-149, -3.0e38, 0.0]
    rows = np.arange(1000)
    whole = ChannelSums.of(x, rows)
    parts = (
        ChannelSums.of(x, rows[:1]) + ChannelSums.of(x, rows[700:]) + ChannelSums.of(x, rows[1:700])
    )
    assert parts == whole
    for channel in range(3):
        exact = [int(math.ldexp(float(v), 149)) for v in x[:, channel]]
        assert whole.total[channel] == sum(exact) << 23
        assert whole.squares[channel] == sum(v * v for v in exact) << 46
    far = np.full((4, 1), 16_777_216, np.float32)  # squares beyond float32, and no variation
    assert statistics(far).mean == ((16_777_216.0,),) and statistics(far).std == ((1.0,),)


def test_words_have_the_same_numbers_everywhere(tmp_path):
    assert words.words("Don't STOP, café_1!") == ["don", "t", "stop", "café_1"]
    assert words.number("stop") == 1 + zlib.crc32(b"stop") % 8191 == 406
    text = 'label,client,task,text\nbad,a,1,Stop stop\ngood,a,1,"go, on and on"\n' * 3
    found = read(written(tmp_path, text), None)
    go, on, and_ = map(words.number, ("go", "on", "and"))
    assert found.dataset.x.dtype == np.int64 and not found.dataset.standardise
    assert found.dataset.x[:2].tolist() == [[406, 406, 0, 0], [go, on, and_, on]]
    assert words.length(["one"] * 95 + ["one two"] * 5) == 1
    assert words.length(["one"] * 94 + ["one two"] * 6) == 2


def test_a_folder_of_tables_has_a_client_per_file(tmp_path):
    for site in ("rome", "berlin"):
        written(tmp_path, "task,y,force\nfeb,1,2\nfeb,0,3\nold,1,2\nold,0,1\n", f"{site}.csv")
    written(tmp_path, "old\nfeb\n", "tasks.txt")
    found = read(tmp_path, None)
    assert found.client_names == ("berlin", "rome") and found.task_names == ("old", "feb")
    written(tmp_path, "task,y,torque\nfeb,1,2\n", "zug.csv")
    with pytest.raises(UserError, match=r"zug.csv: column force is not in all tables of"):
        read(tmp_path, None)


def test_later_rows_are_matched_by_name_and_new_values_are_none_of_the_known(tmp_path):
    form = form_of(read(written(tmp_path, HEAD + ROWS), None).dataset)
    columns = {"on": [1], "colour": ["red"], "force": [2.5], "client": ["a"]}
    assert tables.samples(columns, form, "f").tolist() == [[2.5, 0, 1, 1]]
    with pytest.warns(RuntimeWarning, match="colour has values that are new .*: green"):
        assert tables.samples(columns | {"colour": ["green"]}, form, "f").tolist() == [
            [2.5, 0, 0, 1]
        ]
    with pytest.raises(UserError, match="f: has no column colour"):
        tables.samples({"on": [1], "force": [1]}, form, "f")
    with pytest.raises(UserError, match="f: column speed was not there before"):
        tables.samples(columns | {"speed": [1]}, form, "f")


def test_series_are_images_of_one_column_and_standardised_per_channel(tmp_path):
    series = np.arange(48).reshape(4, 6, 2)
    about = {"y": [0, 1, 0, 1], "client": ["a"] * 4, "task": [0] * 4, "split": [0, 0, 1, 1]}
    np.savez(tmp_path / "s.npz", series=series, **about)
    source = open_custom(tmp_path / "s.npz", None, rounds=1)
    assert source.dataset.shape == (2, 6, 1) and source.dataset.x.dtype == np.float32
    found = source.normalisation(source.stream(0))
    assert found.mean == ((11.0, 12.0),)  # of 0 2 ... 22 and 1 3 ... 23
    assert found.std == ((math.sqrt(143 / 3),) * 2,)
    from_python = in_memory.table({"series": series, **about})
    np.testing.assert_array_equal(from_python.dataset.x, source.dataset.x)
    with pytest.raises(UserError, match=r"series has shape \(4, 2, 2, 1\)"):
        in_memory.table({"series": np.zeros((4, 2, 2, 1)), **about})
    np.savez(tmp_path / "s.npz", series=series, x=series, **about)
    with pytest.raises(UserError, match="has both x and series; keep one"):
        read(tmp_path / "s.npz", None)


def test_python_has_the_same_tables(tmp_path):
    path = written(tmp_path, HEAD + ROWS)
    expected = in_memory.table_sha256(read(path, None))
    cells = tables.read(path)
    assert in_memory.table_sha256(in_memory.table(cells)) == expected
    by_client = {}
    for client, part in (("a", slice(3)), ("b", slice(3, 6))):
        own = {name: cells[name][part] for name in ("y", "force", "colour", "on")}
        by_client[client] = {"t": own}
    assert in_memory.table_sha256(in_memory.table(by_client)) == expected


def test_parquet_and_frames_are_the_same_tables(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    path = written(tmp_path, HEAD + ROWS)
    frame = pandas.read_csv(path)
    frame.to_parquet(tmp_path / "table.parquet", index=False)
    expected = read(path, None)
    for found in (read(tmp_path / "table.parquet", None), in_memory.table(frame)):
        assert found.dataset.columns == expected.dataset.columns
        np.testing.assert_array_equal(found.dataset.x, expected.dataset.x)
    (tmp_path / "table.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="cannot be read as a Parquet file"):
        read(tmp_path / "table.parquet", None)


def test_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    path = written(tmp_path, "", "table.parquet")
    with pytest.raises(UserError, match=r"Parquet needs the extra `tables`: pip install"):
        read(path, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("client,task,force\na,t,1\n", "has no column y; needed are y, client, task"),
        ("client,task,y\na,t,1\n", "has no column of features or of texts"),
        ("client,task,y,label,force\na,t,1,1,1\n", "columns y and label are both there"),
        (HEAD, "has no rows"),
        (HEAD + "a,t,up,1,red\n", "row 1 has 5 cells, the header has 6"),
        (HEAD + ROWS + "a,t,up,,red,1\n", "row 7, column force: is empty"),
        (HEAD + ROWS + "a,t,up,n/a,red,1\n", "row 7, column force: 'n/a' is not a number"),
        (HEAD + ROWS + "a,t,up,1,,1\n", "row 7, column colour: is empty"),
        (HEAD + ROWS + "a,t,,1,red,1\n", "row 7, column y: is empty"),
        (HEAD + ROWS + "a,t,up,1e39,red,1\n", "row 7, column force: NaN, infinite or beyond"),
        (HEAD + ROWS + "a,t,up,nan,red,1\n", "row 7, column force: NaN, infinite or beyond"),
        ("client,task,y,,x1\na,t,1,1,1\n", r"column 4 has no name \(pandas: index=False\)"),
        ("client,task,y,f,f\na,t,1,1,1\n", "two columns have the same name"),
        ("client,task,y,f=1\na,t,1,1\n", "column f=1: a name with = cannot be used"),
        ("client,task,y,text,f\na,t,1,one,1\n", "beside texts, column f is not used"),
        ("client;task;y;f\na;t;1;0,5\na;t;1;-1,25\n", "column f: '0,5' has a comma"),
        ("client,task,y,f,split\na,t,1,1,maybe\n", "row 1, column split: 'maybe' is neither"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(written(tmp_path, text), None)


def test_a_column_of_names_is_no_feature(tmp_path):
    rows = "".join(f"a,t,up,part-{n}\n" for n in range(101))
    with pytest.raises(UserError, match="column part has 101 different values and no numbers"):
        read(written(tmp_path, "client,task,y,part\n" + rows), None)


def test_semicolons_and_other_encodings(tmp_path):
    path = written(tmp_path, (HEAD + ROWS).replace(",", ";"))
    assert read(path, None).dataset.x[1].tolist() == [3, 1, 0, 0]
    path.write_bytes("client,task,y,force\na,t,größer,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as a CSV file in UTF-8"):
        read(path, None)
