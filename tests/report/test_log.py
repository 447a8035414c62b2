import json

import pytest

from asr.errors import DataError
from asr.report.log import read_log


def write(exp, *events, tail=""):
    (exp / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events) + tail)


def epoch(number, seconds, **more):
    return {
        "event": "epoch",
        "epoch": number,
        "train_seconds": seconds,
        "frames": 100,
        "elapsed": 60.0 * number,
        **more,
    }


def test_median_epoch_leaves_out_the_first(tmp_path):
    write(tmp_path, {"event": "start"}, epoch(1, 50.0), epoch(2, 4.0), epoch(3, 6.0), epoch(4, 5.0))
    log = read_log(tmp_path)
    assert (log.epoch_seconds, log.frames_per_second, log.minutes, log.finished) == (5.0, 20.0, 4.0, False)


def test_a_single_epoch_is_all_there_is(tmp_path):
    write(tmp_path, {"event": "start"}, epoch(1, 50.0), {"event": "end"})
    log = read_log(tmp_path)
    assert (log.epoch_seconds, log.finished) == (50.0, True)


def test_resumed_training_counts_each_epoch_once_and_is_unfinished_until_it_ends(tmp_path):
    events = [{"event": "start"}, epoch(1, 1.0, dev_per=9.0), epoch(2, 1.0, dev_per=8.0), {"event": "end"}]
    again = [{"event": "start", "threads": 2}, epoch(2, 3.0, dev_per=7.0), epoch(3, 3.0, dev_per=None)]
    write(tmp_path, *events, *again)
    log = read_log(tmp_path)
    assert [e["epoch"] for e in log.epochs] == [1, 2, 3]
    assert (log.best_per, log.finished, log.start["threads"]) == (7.0, False, 2)
    assert [e["epoch"] for e in log.validated] == [1, 2]


def test_missing_log_is_empty(tmp_path):
    log = read_log(tmp_path)
    assert (log.epochs, log.epoch_seconds, log.best_per, log.minutes) == ([], None, None, None)


def test_line_cut_off_by_a_kill_is_left_out_but_damage_before_it_is_an_error(tmp_path):
    write(tmp_path, {"event": "start"}, epoch(1, 1.0), tail='{"event": "epo')
    assert len(read_log(tmp_path).epochs) == 1
    write(tmp_path, {"event": "start"}, tail='{"event": "epo\n{"event": "end"}\n')
    with pytest.raises(DataError, match=r"log.jsonl:2"):
        read_log(tmp_path)
