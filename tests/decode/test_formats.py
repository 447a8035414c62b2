from __future__ import annotations

import json
import math

import pytest

from asr.decode.formats import FORMATS, Result
from asr.recogniser import TokenSpan

RESULT = Result(
    id="b/x",
    audio="b/x.wav",
    text="Ä N",
    tokens=[TokenSpan("Ä", 0.03, 0.09, -0.5), TokenSpan("N", 0.12, 0.12, 0.0)],
    log_prob=-0.75,
    duration=0.5,
    rate=8000,
    channel=2,
)
NOTHING = Result("e", "e.wav", "", [], 0.0, 0.01, 16000)


def test_txt():
    assert FORMATS["txt"]().render(RESULT) == "b/x\tÄ N\n"
    assert FORMATS["txt"]().render(NOTHING) == "e\t\n"


def test_json_is_one_line_with_everything():
    line = FORMATS["json"]().render(RESULT)
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "id": "b/x",
        "audio": "b/x.wav",
        "text": "Ä N",
        "tokens": [
            {"symbol": "Ä", "start": 0.03, "end": 0.09, "log_prob": -0.5},
            {"symbol": "N", "start": 0.12, "end": 0.12, "log_prob": 0.0},
        ],
        "log_prob": -0.75,
        "duration": 0.5,
        "rate": 8000,
    }
    assert json.loads(FORMATS["json"]().render(NOTHING))["tokens"] == []


def test_json_never_writes_what_json_does_not_know():
    with pytest.raises(ValueError):
        FORMATS["json"]().render(Result("n", "n.wav", "", [], math.nan, 1.0, 8000))


def test_tsv_has_a_header_and_a_row_per_token():
    tsv = FORMATS["tsv"]()
    assert tsv.header.split() == ["id", "start", "end", "token", "log_prob"]
    assert tsv.render(RESULT) == "b/x\t0.030\t0.090\tÄ\t-0.5000\nb/x\t0.120\t0.120\tN\t0.0000\n"
    assert tsv.render(NOTHING) == ""


def test_ctm_has_six_fields_with_duration_and_probability():
    lines = FORMATS["ctm"]().render(RESULT).splitlines()
    assert lines == [f"b/x 2 0.030 0.060 Ä {math.exp(-0.5):.4f}", "b/x 2 0.120 0.000 N 1.0000"]
