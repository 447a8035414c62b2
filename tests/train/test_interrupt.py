"""Ctrl-C and SIGTERM as a user sends them: to the command, in a process of its own, at no particular moment."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asr.data.manifest import read_manifest, write_manifest
from asr.train.checkpoint import load_checkpoint
from asr.train.interrupt import StopRequest

ENV = os.environ | {"OMP_NUM_THREADS": "1"}
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def start(*command):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
        start_new_session=True,
    )


def wait_for(happened, process, seconds=60):
    until = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "the moment never came"
        time.sleep(0.01)


def alive(group):
    """Processes of the group that still run (ended ones whose parent has not looked yet do not count)."""
    out = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True).stdout
    return [line for line in out.splitlines() if line.split()[0] == str(group) and not line.split()[1].startswith("Z")]


def ended_without_children(process, seconds=10):
    until = time.monotonic() + seconds
    while (left := alive(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    return not left


@posix
def test_I9_stopped_at_random_times_it_saves_and_goes_on(toy, tmp_path):
    exp = tmp_path / "exp"
    moments = random.Random(0)
    epochs = 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        lines = (exp / "log.jsonl").read_text().count("\n") if exp.exists() else 0
        process = start("-m", "asr", "train", toy.file, f"exp={exp}", "training.epochs=100000", "--resume")
        log = exp / "log.jsonl"
        wait_for(lambda: log.exists() and log.read_text().count("\n") > lines, process)  # noqa: B023
        time.sleep(moments.uniform(0, 0.5))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert out == ""
        assert err.splitlines()[-1].endswith(f"saved {exp / 'last.pt'}; go on with --resume")
        assert not err.splitlines()[-1].startswith("error")
        done = load_checkpoint(exp / "last.pt")["training"]["counters"]["epoch"]
        assert done >= epochs
        epochs = done
        assert ended_without_children(process)
    numbers = [e["epoch"] for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "epoch"]
    assert numbers == list(range(1, epochs + 1))


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_I9_while_other_processes_compute_features(toy, tmp_path, number):
    one = read_manifest(toy.folder / "train.jsonl")
    many = one + [dataclasses.replace(one[0], id=f"more{n}") for n in range(300)]
    write_manifest(tmp_path / "train.jsonl", many)
    parallel = "import asr.data.extract as e; e.SERIAL_SECONDS = 0; from asr.cli.main import main; main()"
    store = tmp_path / "features"
    process = start(
        "-c", parallel, "train", toy.file, f"exp={tmp_path / 'exp'}", f"data.train={tmp_path / 'train.jsonl'}",
        "data.workers=2", f"data.features={store}",
    )  # fmt: skip
    wait_for(lambda: len(alive(process.pid)) > 2, process)
    time.sleep(0.2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends it to all
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert ended_without_children(process)
    assert not [path for path in store.rglob("*") if path.is_file()], "nothing unfinished stays"


@posix
def test_the_first_signal_asks_and_the_second_stops():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_may_train_without_signals():
    import threading

    seen = []

    def run():
        with StopRequest() as stop:
            seen.append(stop.requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]


def test_the_command_reads_well_where_stderr_is_no_terminal(toy, tmp_path):
    exp = tmp_path / "exp"
    process = start("-m", "asr", "train", toy.file, f"exp={exp}", "training.epochs=2")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"{exp}\n")
    lines = [line for line in err.splitlines() if not line.startswith("features: ")]
    assert [line.split(":")[0] for line in lines] == ["toy", "epoch 1", "epoch 2", "done"]
    assert lines == [line.split(" INFO ")[1] for line in (exp / "train.log").read_text().splitlines()]
    assert "\x1b" not in err
    assert Path(exp / "best.pt").is_file()
