"""training.batch_frames: auto finds the largest batch that fits, once, and changes nothing else of a training."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from asr.cli.main import app
from asr.data.batches import plan_batches
from asr.errors import AsrError, RecipeError
from asr.recipe_loader import dump_recipe, load_recipe, recipe_from_dict, recipe_to_dict
from asr.report.log import read_log
from asr.train import loop
from asr.train.auto_batch import plan, step
from asr.train.auto_batch.available import SPARE, free_memory_mb
from asr.train.auto_batch.search import CLOSE, MOST_TRIES, search
from asr.train.auto_batch.step import DeviceTrials, Shape
from asr.train.auto_batch.worst import worst_batches
from asr.train.checkpoint import load_checkpoint
from asr.train.memory import memory_for
from asr.train.prepare import prepare
from asr.train.run import Run
from asr.train.same import compare_trainings
from asr.train.world import World

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


class TestSearch:
    """Memory is a function of the size here."""

    @pytest.mark.parametrize("limit", [145, 400, 2000, 9000])
    @pytest.mark.parametrize(
        "memory",
        [
            lambda n: 100 + 0.05 * n,
            lambda n: 100 + 0.01 * n + 1e-6 * n * n,
            lambda n: 100 + 0.05 * n + 40 * (n // 1000 % 2),
            lambda n: 100 + n**0.8,
        ],
    )
    def test_finds_the_largest_that_fits_in_few_tries(self, memory, limit):
        found, tried = search(memory, 100, 10**6, limit)
        assert memory(found) <= limit < memory(found * (1 + 2 * CLOSE))
        assert any(one.frames == found for one in tried)
        assert len(tried) <= MOST_TRIES

    def test_memory_that_breaks_off_is_memory_that_does_not_fit(self):
        found, tried = search(lambda n: 100 + 0.05 * n if n < 5000 else None, 700, 10**6, 10_000)
        assert 5000 / (1 + CLOSE) ** 2 <= found < 5000
        assert any(one.peak_mb is None for one in tried)

    def test_where_all_fits_it_is_all(self):
        found, tried = search(lambda n: 100.0, 638, 229_634, 2000)
        assert found == tried[-1].frames == 229_634
        assert len(tried) <= 7

    def test_where_nothing_fits_one_try_will_do(self):
        assert [len(search(lambda n, mb=mb: mb, 700, 5000, 99)[1]) for mb in (100.0, None)] == [1, 1]
        assert search(lambda n: 100.0, 700, 5000, 99)[0] is None

    def test_where_nothing_else_is_allowed_it_is_the_least(self):
        assert search(lambda n: 1.0, 700, 700, 99)[0] == 700

    @settings(deadline=None)
    @given(st.integers(1, 10**4), st.integers(0, 10**5), st.floats(50, 10**4), st.randoms(use_true_random=False))
    def test_whatever_memory_does_what_is_found_was_seen_to_fit(self, least, more, limit, random):
        found, tried = search(lambda n: random.choice([None, random.uniform(0, 10**4)]), least, least + more, limit)
        fitting = [one.frames for one in tried if one.peak_mb is not None and one.peak_mb <= limit]
        assert found == max(fitting, default=None)
        assert len({one.frames for one in tried}) == len(tried) <= MOST_TRIES
        assert all(least <= one.frames <= least + more for one in tried)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 60)), min_size=1, max_size=60), st.integers(300, 2000))
@settings(deadline=None)
def test_no_batch_of_a_training_is_worse_than_the_worst(utterances, size):
    frames, labels = zip(*utterances, strict=True)
    worst = worst_batches(frames, labels, size)
    longest = {tuple(rows): max(frames[row] for row in rows) for rows in worst}
    assert all(len(rows) * longest[tuple(rows)] <= size for rows in worst)
    pairs = max(len(rows) * longest[tuple(rows)] ** 2 for rows in worst)
    most = max(len(rows) for rows in worst)
    for epoch in range(3):
        for batch in plan_batches(frames, size, seed=1, epoch=epoch):
            assert len(batch) <= most
            assert len(batch) * max(frames[row] for row in batch) ** 2 <= pairs


def test_the_batch_with_most_labels_is_among_the_worst():
    """100 utterances of one length, one of which has many labels: neither the longest nor among the most rows."""
    frames, labels = [300, *[100] * 100, *[50] * 100], [5] * 201
    labels[70] = 90
    assert any(70 in rows for rows in worst_batches(frames, labels, 1000))


class TestAvailable:
    @pytest.fixture
    def root(self, tmp_path):
        def write(files):
            for name, text in files.items():
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return tmp_path

        write({"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", "proc/self/cgroup": "0::/\n"})
        return write

    def test_of_a_machine(self, root):
        assert free_memory_mb(root({})) == 8192

    def test_of_a_group_and_those_above_it(self, root):
        group = "sys/fs/cgroup/job/step"
        files = {
            "proc/self/cgroup": "1:name=systemd:/x\n0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": f"{2 << 30}\n",
        }
        files |= {"sys/fs/cgroup/job/memory.current": f"{1 << 30}\n", f"{group}/memory.max": "max\n"}
        files |= {"sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {256 << 20}\nactive_file {128 << 20}\n"}
        assert free_memory_mb(root(files)) == 1024 + 256 + 128

    def test_of_a_container_with_groups_of_version_1(self, root):
        """The path is the host's, the files are at the mount's root."""
        group = "sys/fs/cgroup/memory/memory."
        files = {"proc/self/cgroup": "4:memory:/docker/0123\n0::/\n", f"{group}stat": "total_inactive_file 0\n"}
        files |= {f"{group}limit_in_bytes": str(3 << 30), f"{group}usage_in_bytes": str(1 << 30)}
        assert free_memory_mb(root(files)) == 2048

    def test_a_group_that_is_full(self, root):
        files = {"sys/fs/cgroup/memory.max": "1000", "sys/fs/cgroup/memory.current": "2000"}
        assert free_memory_mb(root({**files, "sys/fs/cgroup/memory.stat": ""})) == 0


class FakeTrials:
    """In place of the child: memory as `mb` says for each batch's shape, and what was asked."""

    def __init__(self, monkeypatch, mb):
        self.mb, self.asked = mb, []
        monkeypatch.setattr(plan, "ChildTrials", lambda *_: self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def peak_mb(self, shapes):
        self.asked.append(shapes)
        return max(self.mb(len(shape.lengths), max(shape.lengths)) for shape in shapes)


def choice(exp):
    """What log.jsonl says of it."""
    lines = [json.loads(line) for line in (exp / "log.jsonl").read_text().splitlines()]
    (event,) = [line for line in lines if line["event"] == "batch_frames"]
    return event


def ready(toy, exp, *overrides, size=1):
    """What `prepare` makes of the recipe."""
    recipe = toy.recipe(exp, *overrides)
    world = World(recipe.training)
    with Run(recipe, False, False) as run:
        return prepare(recipe, run, world)


def test_memory_bounds_it(toy, tmp_path, monkeypatch):
    """6 rows of the longest utterance fit."""
    longest = max(ready(toy, tmp_path / "fixed").train.frames)
    trials = FakeTrials(monkeypatch, lambda rows, frames: 100 + rows * frames)
    limit = int((100 + 6.5 * longest) / (1 - SPARE))
    state = ready(toy, tmp_path / "auto", f"training.batch_frames={{kind: auto, memory_mb: {limit}, min_updates: 1}}")
    found = state.recipe.training.frames_per_batch
    assert 6 * longest <= found < 7 * longest
    assert trials.asked[0][0].lengths == [longest]
    event = choice(tmp_path / "auto")
    assert (event["frames"], event["bound"]) == (found, "memory")
    assert event["limit_mb"] == pytest.approx((1 - SPARE) * limit)
    fitting = [one["frames"] for one in event["tried"] if one["peak_mb"] <= event["limit_mb"]]
    assert max(fitting) == found


@pytest.mark.parametrize("more", [(), ("training.accumulate=2",), ("training.speeds=[0.8, 1.0]",)])
def test_updates_bound_it(toy, tmp_path, monkeypatch, more):
    FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    state = ready(toy, tmp_path, "training.batch_frames={kind: auto, min_updates: 3}", *more)
    assert all(len(state.groups(epoch)) >= 3 for epoch in range(5))
    assert len(state.groups(0)) <= 5, "and no more of them than that takes"


def test_frames_bound_it(toy, tmp_path, monkeypatch):
    FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    more = ("training.batch_frames={kind: auto, min_updates: 1, max_frames: 800}", "training.accumulate=2")
    assert ready(toy, tmp_path, *more).recipe.training.frames_per_batch == 400


def test_no_utterance_is_left_out_for_a_bound(toy, tmp_path, monkeypatch):
    FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    state = ready(toy, tmp_path, "training.batch_frames={kind: auto, min_updates: 1000}")
    assert (len(state.train.ids), state.train.dropped) == (14, {})
    assert state.recipe.training.frames_per_batch == max(state.train.frames)


def test_a_trial_has_what_a_step_will_have(toy, tmp_path, monkeypatch):
    """Two views, of the slowest speed, and real targets."""
    trials = FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    consistency = ("training.consistency={}", "training.spec_augment={time_masks: 1}", "training.speeds=[0.8, 1.0]")
    state = ready(toy, tmp_path, "training.batch_frames={kind: auto, min_updates: 1}", *consistency)
    slowest = [state.train.speeds[0.8].frames(id) for id in state.train.ids]
    assert trials.asked[0][0].lengths == [max(slowest)]
    assert state.recipe.training.frames_per_batch >= 2 * max(slowest)
    for shapes in trials.asked:
        for shape in shapes:
            pairs = list(zip(slowest, state.train.targets, strict=True))
            assert all(pair in pairs for pair in zip(shape.lengths, shape.targets, strict=True))


def test_nothing_fits(toy, tmp_path, monkeypatch):
    """The error names the utterance and the limit, and an earlier training in the folder is left alone."""
    loop.train(toy.recipe(tmp_path, "training.epochs=1"))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    FakeTrials(monkeypatch, lambda rows, frames: 5000.0)
    with pytest.raises(AsrError) as error:
        loop.train(toy.recipe(tmp_path, "training.batch_frames={kind: auto, memory_mb: 2000}"), overwrite=True)
    state = ready(toy, tmp_path / "other")
    longest = max(range(14), key=lambda row: state.train.frames[row])
    assert str(error.value) == (
        "training.batch_frames: auto: nothing fits: a step on the longest utterance alone, "
        f"{state.train.ids[longest]} ({state.train.frames[longest] / 100:.1f} s), takes 5,000 MB, and 1,700 MB may be "
        "used (85% of memory_mb); lower data.max_seconds, or take a smaller model or another mixer"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")} == before


@linux
def test_a_limit_below_what_the_process_has_already(toy, tmp_path):
    with pytest.raises(AsrError, match=r"nothing fits: .* takes more, and 17 MB may be used"):
        ready(toy, tmp_path, "training.batch_frames={kind: auto, memory_mb: 20}")


FULL = (
    "training.batch_frames={kind: auto, min_updates: 4}", "training.average=ema", "model.encoder.dropout=0.3",
    "model.encoder.attention={kind: lsh, bucket_size: 8}", "training.spec_augment={freq_masks: 1}",
)  # fmt: skip


@linux
def test_measured_for_real_once_and_never_again(toy, tmp_path, monkeypatch):
    """The training is that of a recipe with the number; resumed, with a checkpoint or without, it plans no more."""
    exp = tmp_path / "auto"
    loop.train(toy.recipe(exp, *FULL))
    saved = load_recipe(exp / "recipe.yaml").training
    event = choice(exp)
    best = load_checkpoint(exp / "best.pt")["recipe"]
    assert event["frames"] == saved.found == best["training"]["batch_frames"]["found"]
    assert event["bound"] == "min_updates: 4"
    assert len(event["tried"]) >= 2
    for one in event["tried"]:
        assert 20 < one["peak_mb"] < event["limit_mb"], "MB of this process and of a tiny model's step"
    assert f"auto is {saved.found} frames, bounded by min_updates: 4" in (exp / "train.log").read_text()
    assert read_log(exp).finished

    loop.train(toy.recipe(tmp_path / "number", *FULL, f"training.batch_frames={saved.found}"))
    different = compare_trainings(exp, tmp_path / "number")[1]
    assert all(".training.batch_frames" in line for line in different), different

    monkeypatch.setattr("asr.train.prepare.find_batch_frames", lambda *_: pytest.fail("planned again"))
    for stop in (0, 2):  # steps
        again = tmp_path / f"stopped{stop}"
        again.mkdir()
        (again / "recipe.yaml").write_text((exp / "recipe.yaml").read_text().replace(str(exp), str(again)))
        (again / "log.jsonl").touch()
        if stop:
            with monkeypatch.context() as patch:
                patch.setattr(loop, "StopRequest", stop_after(patch, stop))
                with pytest.raises(loop.Interrupted):
                    loop.train(toy.recipe(again, *FULL), resume=True)
        loop.train(toy.recipe(again, *FULL), resume=True)
        assert compare_trainings(exp, again)[1] == []


def stop_after(monkeypatch, steps):
    made, real = [], loop._step

    def step_(group, state):
        real(group, state)
        made.append(group)

    class Stop:
        requested = property(lambda self: len(made) >= steps)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(loop, "_step", step_)
    return Stop


def test_asked_for_alone(toy, tmp_path, monkeypatch):
    FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    auto = "training.batch_frames={kind: auto, min_updates: 4}"
    command = ["train", str(toy.file), f"exp={tmp_path / 'exp'}", "--find-batch"]
    done = CliRunner().invoke(app, [*command, auto])
    assert (done.exit_code, done.stdout) == (0, "311\n"), done.stderr
    assert not (tmp_path / "exp").exists()
    for more, message in {
        ("--resume", auto): "error: --find-batch trains nothing: leave out the other options\n",
        (): "error: training.batch_frames is 300; add training.batch_frames=auto\n",
    }.items():
        done = CliRunner().invoke(app, [*command, *more])
        assert (done.exit_code, done.stderr) == (2, message)


def test_another_recipe_is_another_training(toy, tmp_path, monkeypatch):
    trials = FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    auto = "training.batch_frames={kind: auto, min_updates: 4}"
    recipe = toy.recipe(tmp_path, auto, "training.epochs=1")
    loop.train(recipe)
    (found,) = {load_recipe(tmp_path / "recipe.yaml").training.found}
    for other, keys in {
        "{kind: auto, min_updates: 5}": r"training\.batch_frames\.min_updates",
        f"{found}": r"training\.batch_frames",
        f"{{kind: auto, min_updates: 4, found: {found - 1}}}": r"training\.batch_frames\.found",
    }.items():
        with pytest.raises(AsrError, match=f"these keys differ: {keys};"):
            loop.train(toy.recipe(tmp_path, f"training.batch_frames={other}"), resume=True)
    tries = len(trials.asked)
    loop.train(toy.recipe(tmp_path, auto, "training.epochs=2"), resume=True)
    assert len(trials.asked) == tries
    (tmp_path / "last.pt").unlink()
    (tmp_path / "previous.pt").unlink()
    loop.train(toy.recipe(tmp_path, auto, "seed=9", "training.epochs=1"), resume=True, overwrite=True)
    assert len(trials.asked) > tries, "begun anew, with another recipe than that of the folder"


def test_on_a_gpu_a_failed_allocation_is_a_size_that_does_not_fit(toy, tmp_path, monkeypatch):
    """Without a GPU: its allocator is told, and runs out at 3 rows."""
    cpu, recipe, random, fork = torch.device("cpu"), toy.recipe(tmp_path), torch.get_rng_state(), torch.random.fork_rng
    held = iter([100 << 20, 130 << 20])  # before and after the trial's weights
    for name, value in {
        "memory_allocated": lambda device: next(held), "max_memory_allocated": lambda device: 500 << 20,
        "reset_peak_memory_stats": lambda device: None, "empty_cache": lambda: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(step.torch.cuda, name, value)
    monkeypatch.setattr(step.torch.random, "fork_rng", lambda devices: fork([]))
    real = step.losses

    def losses(model, batch, *more):
        if len(batch.lengths) >= 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, batch, *more)

    monkeypatch.setattr(step, "losses", losses)
    with DeviceTrials(recipe, 5, 0, cpu) as trials:
        peaks = [trials.peak_mb([Shape([50] * rows, [[1, 2]] * rows)]) for rows in (1, 3, 2)]
    assert peaks == [470, None, 470], "the weights of the trial are not there twice in a training"
    assert torch.equal(torch.get_rng_state(), random)


class Child:
    """A program in place of the child that makes the trial steps."""

    def __init__(self, monkeypatch, code):
        self.started, real = 0, step.subprocess.Popen

        def start(command, **more):
            assert command == [sys.executable, "-m", "asr.train.auto_batch.step"]
            self.started += 1
            return real([sys.executable, "-S", "-c", code], **more)

        monkeypatch.setattr(step.subprocess, "Popen", start)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_child_killed_for_its_memory_says_that_a_size_does_not_fit(toy, tmp_path, monkeypatch):
    """And the next size gets a new child."""
    child = Child(monkeypatch, "import os\ninput()\ninput()\nprint(50)\ninput()\nos.kill(os.getpid(), 9)")
    shape = Shape([50], [[1]])
    with step.ChildTrials(toy.recipe(tmp_path), 5, 0, own_mb=100.0, limit_mb=200.0) as trials:
        assert [trials.peak_mb([shape]) for _ in range(3)] == [150, None, 150]
    assert child.started == 2


def test_another_failure_than_of_memory_is_no_size(toy, tmp_path, monkeypatch):
    Child(monkeypatch, "raise SystemExit(3)")
    child = step.ChildTrials(toy.recipe(tmp_path), 5, 0, own_mb=100.0, limit_mb=200.0)
    with child as trials, pytest.raises(AsrError, match="a trial step ended with exit code 3, see above"):
        trials.peak_mb([Shape([50], [[1]])])


def test_fragments_are_given_back_at_the_limit(toy, tmp_path, monkeypatch):
    """And the numbers of a training that is not `auto` are not looked at."""
    given = []
    monkeypatch.setattr("asr.train.state.give_back_freed_memory", lambda: given.append(1))
    FakeTrials(monkeypatch, lambda rows, frames: 1.0)
    state = ready(toy, tmp_path, "training.batch_frames={kind: auto, memory_mb: 1000}")
    for own, times in ((849.0, 0), (851.0, 1)):
        monkeypatch.setattr("asr.train.state.own_memory_mb", lambda own=own: own)
        state.keep_within_memory()
        assert len(given) == times
    state = ready(toy, tmp_path / "number")
    state.keep_within_memory()
    assert len(given) == 1


def test_the_recipe_as_it_is_written_and_shown(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.batch_frames=auto")
    assert recipe == toy.recipe(tmp_path, "training.batch_frames.kind=auto")
    assert "  batch_frames:\n    kind: auto\n    memory_mb: null\n    min_updates: 100\n" in dump_recipe(recipe)
    assert recipe.training.batch_is_open
    settled = recipe.settled(700)
    assert (settled.training.frames_per_batch, settled.settled(800)) == (700, settled)
    assert recipe_from_dict(recipe_to_dict(settled)) == settled
    number = toy.recipe(tmp_path, "training.batch_frames=900")
    assert number.settled(700) is number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'4000'", "must be an integer >= 1 or auto, got the quoted string '4000'; write 4000 without quotes"),
        ("lots", "must be an integer >= 1 or auto, got 'lots'"),
        ("4.5", "must be an integer >= 1 or auto, got 4.5"),
        ("{memory: 3}", "unknown key 'memory'; did you mean 'memory_mb'?"),
        ("{memory_mb: 0}", "memory_mb: must be an integer >= 1 or null, got 0"),
    ],
)
def test_mistakes_in_it(toy, tmp_path, text, message):
    with pytest.raises(RecipeError) as error:
        toy.recipe(tmp_path, f"training.batch_frames={text}")
    assert str(error.value).endswith(message)


def test_out_of_memory_nevertheless(toy, tmp_path):
    for batch, advice in {
        "300": "lower training.batch_frames (and raise training.accumulate by as much) or data.max_seconds; "
        "training.batch_frames=auto finds what fits",
        "{kind: auto, found: 300}": "lower training.batch_frames.memory_mb, so that auto finds less than 300 frames, "
        "and start anew with --overwrite",
    }.items():
        recipe = toy.recipe(tmp_path, f"training.batch_frames={batch}")
        with pytest.raises(AsrError) as error, memory_for(["a"], [30], recipe):
            raise MemoryError
        assert str(error.value).endswith(advice)
