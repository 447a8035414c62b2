"""Several processes that train together: the same steps as one, and an end to every kind of failure."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from asr.recipe_loader import load_recipe
from asr.report.log import read_log
from asr.train.checkpoint import load_checkpoint
from asr.train.same import compare_trainings
from asr.train.world import World

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks and signals")
PLAIN = ("model.encoder.dropout=0", "training.clip=1e9", "training.optimiser.lr=1e-3")


def _process(function, rank, size, port, out, arguments):
    """What torchrun does for each of its processes, without the seconds that a new Python takes."""
    sys.stderr = open(f"{out}.{rank}", "w")  # noqa: SIM115
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    from asr.cli.stderr import log_to_stderr
    from asr.errors import AsrError

    torch.set_num_threads(1)
    try:
        with log_to_stderr():
            function(*arguments)
    except AsrError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    sys.stderr.flush()
    os._exit(0)


class Together:
    """`function(*arguments)` in several processes; `codes` and `said` by rank once `wait` has returned."""

    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    context.set_forkserver_preload(["asr.train.check_resume", "asr.cli.main"])

    def __init__(self, size, out, function, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.out = out
        self.processes = [
            self.context.Process(target=_process, args=(function, rank, size, port, out, arguments))
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds=60):
        until = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        hanging = [rank for rank, process in enumerate(self.processes) if process.exitcode is None]
        for process in self.processes:
            process.kill()
        assert not hanging, f"ranks {hanging} hang: {self.said}"
        self.codes = [process.exitcode for process in self.processes]
        return self

    @property
    def said(self):
        return [Path(f"{self.out}.{rank}").read_text() for rank in range(len(self.processes))]


def train(recipe, hang=None, kill=None, poison=None, full=None):
    """Train, with features in several parts.

    `hang` and `kill`: (rank, step) at which a process stops answering or is killed; `poison`: an id; `full`: a rank
    whose disk is.
    """
    from asr.data import store_parts, store_plan
    from asr.train import loop
    from asr.train.world import this_rank

    store_parts.PART_SECONDS = 1.0
    if full == this_rank():
        store_plan.write_part = no_space

    real = loop._step

    def step(group, state):
        where = (this_rank(), state.counters.group + 1)
        if where == hang:
            time.sleep(120)
        if where == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        real(group, state)

    loop._step = step
    if poison:
        from asr.train import prepare as module

        whole = module._sets

        def sets(*arguments):
            train_set, dev_set = whole(*arguments)
            bad, apply = train_set.store[poison].data_ptr(), train_set.cmvn.apply
            train_set.cmvn.apply = lambda x, s=None: apply(x, s) * (math.nan if x.data_ptr() == bad else 1)
            return train_set, dev_set

        module._sets = sets
    loop.train(recipe)


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def losses(folder):
    return [(e["loss"], e["dev_loss"], e["dev_sdi"], e["dev_tokens"], e["frames"]) for e in read_log(folder).epochs]


@pytest.fixture(scope="module")
def alone(toy, tmp_path_factory):
    """Trained by one process, in groups of two batches, the last of an epoch smaller."""
    from asr.train import loop

    exp = tmp_path_factory.mktemp("alone")
    loop.train(toy.recipe(exp, *PLAIN, "training.accumulate=2"))
    return exp


@pytest.mark.parametrize("size", [2, 3])
def test_E7_several_processes_make_the_steps_of_one(toy, tmp_path, alone, size):
    """Same losses, rates and scores, and the same weights: 14 utterances neither by 3 nor their batches by 2.

    They compute the features together, each of them some and none of them twice.
    """
    exp = tmp_path / "exp"
    recipe = toy.recipe(exp, *PLAIN, "training.accumulate=2", f"data.features={tmp_path / 'features'}")
    done = Together(size, tmp_path / "said", train, recipe).wait()
    assert done.codes == [0] * size, done.said
    computed = [[int(n) for n in re.findall(r"features: \d+ of (\d+)", said)] for said in done.said]
    assert sum(map(sum, computed)) == 14 + 3
    assert all(map(sum, computed))
    for got, wanted in zip(losses(exp), losses(alone), strict=True):
        assert got[:2] == pytest.approx(wanted[:2], rel=1e-4)
        assert got[2:] == wanted[2:]
    got, wanted = (load_checkpoint(folder / "last.pt") for folder in (exp, alone))
    for key, value in wanted["model"].items():
        torch.testing.assert_close(got["model"][key], value, atol=1e-4, rtol=1e-3)
    a, b = got["training"]["counters"], wanted["training"]["counters"]
    assert {k: a[k] for k in ("epoch", "group", "best_epoch")} == {k: b[k] for k in ("epoch", "group", "best_epoch")}
    assert read_log(exp).start["processes"] == size
    assert "epoch 1: loss" in done.said[0]
    assert all("loss" not in said for said in done.said[1:]), "one voice"


def gradients(recipe, folder, groups):
    """Write what this process's optimiser would be given for each group of batches, and how much was sent early."""
    from asr.train import exchange, loop
    from asr.train.prepare import prepare
    from asr.train.run import Onlooker, Run

    exchange.BUCKET_BYTES = 2000
    with World(recipe.training) as world, (Run if world.first else Onlooker)(recipe, False, True) as run:
        state = prepare(recipe, run, world)
        state.model.unused = torch.nn.Parameter(torch.ones(2))
        found, early, finish = [], [], state.exchange.finish
        state.optimiser.step = lambda: found.append(
            [None if p.grad is None else p.grad.clone() for p in state.model.parameters()]
        )
        state.exchange.finish = lambda: (early.append(len(state.exchange._sent)), finish())
        for group in groups:
            loop._step(group, state)
        torch.save((found, early, len(state.exchange._buckets)), folder / f"{world.rank}.pt")


def test_E7_gradients_are_those_of_one_process(toy, tmp_path):
    """Over batches cut by rows, some of fewer rows than processes, and a parameter that nobody uses.

    All buckets but that of the unused parameter are on their way before the backward pass ends.
    """
    recipe = toy.recipe(tmp_path / "exp", *PLAIN)
    groups = [[[0, 1, 2, 3, 4], [5], [6, 7], [8]], [[9]], [[10, 11, 12], [13]]]
    gradients(recipe, tmp_path, groups)
    alone, _, _ = torch.load(tmp_path / "0.pt")
    for size in (2, 3):
        done = Together(size, tmp_path / "said", gradients, recipe, tmp_path, groups).wait()
        assert done.codes == [0] * size, done.said
        ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]
        for rank, (found, early, buckets) in enumerate(ranks):
            assert buckets > 3
            assert early == [buckets - 1 if world_of(size, rank).part(group) else 0 for group in groups]
            for step, wanted in enumerate(alone):
                assert found[step][0] is None
                assert wanted[0] is None
                for a, first, b in zip(found[step][1:], ranks[0][0][step][1:], wanted[1:], strict=True):
                    assert torch.equal(a, first), "the same bits in every process"
                    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def world_of(size, rank):
    world = World.__new__(World)
    world.size, world.rank = size, rank
    return world


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_parts_of_a_group_are_the_group(size):
    for group in ([[0, 1, 2, 3, 4, 5, 6]], [[3], [4]], [[1, 2], [5, 6, 7, 8], [9]], [[1], [2], [3, 4], [5], [6]]):
        parts = [world_of(size, rank).part(group) for rank in range(size)]
        rows = sorted(row for part in parts for batch in part for row in batch)
        assert rows == sorted(row for batch in group for row in batch)
        assert all(batch for part in parts for batch in part)
        if len(group) % size == 0:
            assert all(batch in group for part in parts for batch in part)
    parts = [world_of(3, rank).part([[1], [2], [3], [4]]) for rank in range(3)]
    assert [len(part) for part in parts] == [2, 1, 1], "not all of them rank 0's"


def test_F7_an_infeasible_and_a_poisoned_utterance_stop_nobody(toy, tmp_path):
    """7 utterances; one without enough frames is left out for all, the step of the other is skipped by all."""
    lines = (toy.folder / "train.jsonl").read_text().splitlines()[:7]
    lines[3] = re.sub(r'"phones": "[^"]*"', f'"phones": "{"A " * 200}"', lines[3])
    (toy.folder / "seven.jsonl").write_text("\n".join(lines) + "\n")
    exp = tmp_path / "exp"
    recipe = toy.recipe(exp, *PLAIN, f"data.train={toy.folder / 'seven.jsonl'}", "training.batch_frames=200")
    bad = re.search(r'"id": "([^"]*)"', lines[5])[1]
    done = Together(2, tmp_path / "said", train, recipe, None, None, bad).wait()
    assert done.codes == [0, 0], done.said
    assert len((exp / "dropped-train.tsv").read_text().splitlines()) == 1
    log = (exp / "train.log").read_text()
    assert f"skipped: the loss of {bad} is not finite" in log
    epochs = read_log(exp).epochs
    assert [e["skipped_steps"] for e in epochs] == [1, 2, 3]
    assert all(math.isfinite(e["loss"]) and math.isfinite(e["dev_per"]) for e in epochs)


def test_a_silent_process_is_named_within_the_limit(toy, tmp_path):
    recipe = toy.recipe(tmp_path / "exp", *PLAIN, "training.timeout_minutes=0.05")
    done = Together(3, tmp_path / "said", train, recipe, (1, 2))
    began = time.monotonic()
    for rank in (0, 2):
        done.processes[rank].join(30)
    assert time.monotonic() - began < 20
    assert [done.processes[rank].exitcode for rank in (0, 2)] == [1, 1], done.said
    done.processes[1].kill()
    for rank in (0, 2):
        wanted = (
            rf"error: rank {rank} on \S+, epoch 1, step 2: cannot go on: rank 1 on \S+, epoch 1, step 1, was killed or "
            "did not answer within 3 s; --resume goes on from the last checkpoint"
        )
        assert re.search(wanted, done.said[rank]), done.said[rank]


def test_a_signal_to_any_process_stops_all_with_a_checkpoint(toy, tmp_path):
    exp = tmp_path / "exp"
    many = toy.recipe(exp, *PLAIN, "training.epochs=10000")
    done = Together(2, tmp_path / "said", train, many)
    until = time.monotonic() + 30
    while not (exp / "last.pt").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(done.processes[1].pid, signal.SIGTERM)
    assert done.wait(30).codes == [130, 130], done.said
    assert re.search(r"error: stopped in epoch \d+; saved", done.said[0])
    assert "stopped" not in done.said[1]
    assert (exp / "last.pt").exists()


def test_a_process_that_cannot_store_its_features_ends_all(toy, tmp_path):
    recipe = toy.recipe(tmp_path / "exp", *PLAIN, f"data.features={tmp_path / 'features'}")
    done = Together(2, tmp_path / "said", train, recipe, None, None, None, 1).wait(30)
    assert done.codes == [1, 1], done.said
    for said in done.said:
        assert re.search(r"rank 1 on .*reading the data.*cannot store features: No space left on device", said), said
    assert not (tmp_path / "exp" / "log.jsonl").exists()


def test_other_data_on_another_machine_are_refused(toy, tmp_path):
    done = Together(2, tmp_path / "said", train_other, toy, tmp_path / "exp").wait(30)
    assert done.codes == [1, 1], done.said
    for said in done.said:
        assert re.search(r"rank 1 on \S+ does not train what rank 0 does; these differ: training.clip", said), said
    assert not (tmp_path / "exp" / "log.jsonl").exists()


def train_other(toy, exp):
    from asr.train.world import this_rank

    train(toy.recipe(exp, *PLAIN, f"training.clip={1 + this_rank()}"))


@pytest.mark.parametrize("command", [("show", "toy.yaml"), ("train", "toy.yaml", "--check-resume")])
def test_what_is_one_process_says_so_under_torchrun(toy, monkeypatch, command):
    from typer.testing import CliRunner

    from asr.cli.main import app

    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 2
    assert "without torchrun" in result.stderr


def killed_once(recipe, exp):
    """`asr train` in one of two processes, the second of which is killed in the second epoch of its first attempt."""
    from asr.cli.stderr import log_to_stderr
    from asr.cli.train import train as command
    from asr.train import loop

    real = loop._step

    def step(group, state):
        if (state.world.rank, state.counters.epoch, state.world.restarted) == (1, 1, False):
            os.kill(os.getpid(), signal.SIGKILL)
        real(group, state)

    loop._step = step
    with log_to_stderr():
        command(recipe, [f"exp={exp}"])


def torchrun(logs, function, *arguments):
    """torchrun --standalone --nproc-per-node 2 --max-restarts 1, without the seconds that every new Python takes."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, 2, DefaultLogsSpecs(str(logs), redirects=Std.ALL), "again", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=1, monitor_interval=0.2, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, function)(*arguments)


def test_torchrun_restarts_after_a_kill_and_ends_with_the_unbroken_training(toy, tmp_path):
    exp, whole, logs = tmp_path / "exp", tmp_path / "whole", tmp_path / "logs"
    unbroken = Together(2, tmp_path / "said", train, toy.recipe(whole)).wait()
    assert unbroken.codes == [0, 0], unbroken.said
    again = Together(1, tmp_path / "agent", torchrun, logs, killed_once, toy.file, exp).wait(120)
    assert again.codes == [0], again.said
    first, second = ({p.parent.name: p for p in logs.glob(f"*/attempt_{n}/*/std*.log")} for n in (0, 1))
    assert first.keys() == second.keys() == {"0", "1"}
    said, printed = ([second[rank].with_name(f"std{name}.log").read_text() for rank in "01"] for name in ("err", "out"))
    assert "resumed at epoch 2" in said[0]
    assert printed == [f"{exp}\n", ""]
    assert compare_trainings(whole, exp)[1] == []


def of_two_machines(recipe):
    """Train; rank 1 has less memory for a batch that is still to be found."""
    from asr.train import loop
    from asr.train.auto_batch import plan
    from asr.train.world import this_rank

    os.environ["LOCAL_RANK"] = "0"
    limit = 3 if this_rank() else 5

    class Trials:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def peak_mb(self, shapes):
            return 1.0 if max(len(shape.lengths) * shape.lengths[0] for shape in shapes) <= 100 * limit else None

    plan.ChildTrials = Trials
    loop.train(recipe)


def test_batch_frames_auto_is_the_smallest_of_all_processes(toy, tmp_path):
    recipe = toy.recipe(tmp_path / "exp", "training.batch_frames={kind: auto, min_updates: 1}", "training.epochs=1")
    done = Together(2, tmp_path / "said", of_two_machines, recipe).wait()
    assert done.codes == [0, 0], done.said
    found = load_recipe(tmp_path / "exp" / "recipe.yaml").training.found
    assert 500 < found <= 620, "half of the rows for each: rank 1 takes 300 frames, rank 0 would take 500"
