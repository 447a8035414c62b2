import csv
import io

from rich.console import Console

from asr.report.table import Rate, Row, csv_text, markdown, notes, rich_table

ROWS = [
    Row("softmax", {"test": Rate("PER", 9.75, 8.6, 11.0)}, 10.5, 41.25, 1.0, 4848.4, 3456789, 1200.4, 0.0123, 40, 28.0,
        baseline=True),
    Row("linear|x", {"test": Rate("PER", None)}, error="training failed"),
    Row("softmax", dev_rate=5.12, epoch_seconds=2711, ratio=1.0, published="Some paper, table 3", baseline=True),
]  # fmt: skip


def test_markdown_has_one_cell_per_column_and_says_what_the_numbers_are():
    lines = markdown(ROWS, ["seeds differ"]).splitlines()
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert header[:3] == ["model", "test PER %", "best dev %"]
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert dict(zip(header, cells, strict=True)) == {
        "model": "softmax",
        "test PER %": "9.75 [8.60, 11.00]",
        "best dev %": "10.50",
        "epoch s": "41.2",
        "× softmax": "1.00",
        "frames/s": "4,848",
        "parameters": "3,456,789",
        "peak MB": "1,200",
        "RTF": "0.0123",
        "epochs": "40",
        "train min": "28.0",
    }
    assert "| linear\\|x | undefined |" in lines[3]
    assert "softmax (published)" in lines[4]
    text = "\n".join(lines)
    for note in ("Some paper, table 3", "linear|x: training failed", "seeds differ", "95 %"):
        assert note in text


def test_csv_holds_raw_numbers():
    first, second, third = csv.DictReader(io.StringIO(csv_text(ROWS)))
    assert (first["test_per"], first["test_low"], first["epoch_seconds"], first["parameters"]) == (
        "9.75",
        "8.6",
        "41.25",
        "3456789",
    )
    assert (second["test_per"], second["error"]) == ("", "training failed")
    assert third["source"] == "Some paper, table 3"


def test_columns_without_any_value_are_left_out():
    text = markdown([Row("a", {"dev": Rate("PER", 5.0)})])
    assert text.splitlines()[0] == "| model | dev PER % |"


def test_only_our_baseline_is_named_in_the_notes():
    assert [n for n in notes(ROWS) if n.startswith("× softmax")] == ["× softmax: epoch time relative to softmax."]


def test_notes_say_what_the_rates_count():
    rate, folded = {"test": Rate("PER", 5.0)}, ("stress folded",)
    assert "Counting: stress folded." in notes([Row("a", rate, rules=folded), Row("b", rate, rules=folded)])
    lines = notes([Row("a", rate, rules=(*folded, "ignored: NSN")), Row("b", rate), Row("c", error="lost")])
    assert "Counting, a: stress folded; ignored: NSN." in lines
    assert "Counting, b: every token counts as it is." in lines
    assert any(line.startswith("Best dev: as in training") for line in lines)
    assert not any(" c:" in line for line in lines if line.startswith("Counting"))


def test_a_single_epoch_is_said_to_hold_its_warm_up():
    lines = notes([Row("a", epochs=1), Row("b", epochs=2)])
    assert [line for line in lines if "warm-up" in line] == [
        "Trained for one epoch, which is timed with its warm-up: a."
    ]


def test_terminal_table_shows_every_row():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rich_table(ROWS))
    text = console.export_text()
    assert "9.75 [8.60, 11.00]" in text
    assert "undefined" in text
