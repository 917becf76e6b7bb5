"""`rounds.csv` as it grows: at every moment it is what the whole file of these rows would be."""

from fedmes.results import rounds_csv
from fedmes.results.rounds_csv import ROUND_COLUMNS, GrowingFile

PLAIN = {
    "seed": 0, "task": 0, "round": 0, "client": 1, "loss": 0.5,
    "up_bytes": 8, "down_bytes": 8, "seconds": 0.1, "left_out": 0, "reason": "",
}  # fmt: skip


def test_it_grows_as_if_it_was_written_at_once(tmp_path):
    path = tmp_path / "rounds.csv"
    path.write_text("of an earlier start")
    growing = GrowingFile(path)
    batches = [
        [],
        [PLAIN, PLAIN | {"client": 2}],
        [],
        [PLAIN | {"round": 1, "a, b": 3.5}],  # a method's own column, from here on
        [PLAIN | {"round": 2, "reason": "=not finite"}],
    ]
    rows = []

    def rows_from(start):
        return rows[start:]

    for batch in batches:
        rows.extend(batch)
        growing.update(rows_from)
        assert path.read_bytes() == rounds_csv.text(rows).encode()
    assert path.read_text().splitlines()[0] == ",".join(ROUND_COLUMNS) + ',"a, b"'


def test_what_is_there_is_not_written_again(tmp_path):
    path = tmp_path / "rounds.csv"
    growing = GrowingFile(path)
    growing.update(lambda start: [PLAIN][start:])
    with path.open("a") as file:
        file.write("mark\r\n")
    growing.update(lambda start: [PLAIN, PLAIN][start:])
    assert path.read_text().splitlines()[2] == "mark"


def test_a_line_in_writing_is_no_row(tmp_path):
    path = tmp_path / "rounds.csv"
    path.write_bytes(rounds_csv.text([PLAIN]).encode() + b"0,0,1,1,0.4")
    (row,) = rounds_csv.read(path)
    assert (row["client"], row["loss"], row["left_out"]) == ("1", "0.5", 0)
    assert rounds_csv.read(tmp_path / "absent.csv") == []
