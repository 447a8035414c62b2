"""A stopped training, resumed, is the training that was never stopped; what cannot be resumed is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from asr.errors import AsrError, DataError
from asr.train import loop
from asr.train.checkpoint import load_checkpoint, save_checkpoint
from asr.train.measure import Stopwatch
from asr.train.same import compare_trainings
from asr.train.sets import LoadedSet

# Everything random or with a memory of its own is on.
FULL = (
    "training.accumulate=2",
    "training.batch_frames=200",
    "training.schedule={kind: plateau, patience: 0, warmup: 3}",
    "training.spec_augment={freq_masks: 1, time_masks: 1, time_width: 5}",
    "model.encoder.dropout=0.3",
    "model.encoder.attention={kind: lsh, bucket_size: 8}",
)


class Watch:
    """Notes the ids of every training batch, and asks for a stop when the moment has come."""

    def __init__(self, monkeypatch):
        self.ids: list[list[str]] = []
        self.steps = self.validations = 0
        self.stop_at: tuple[str, int] | None = None  # ("step" or "validation", how many of them)
        batch, step, validate = LoadedSet.batch, loop._step, loop.validate

        def batch_(data, rows, augment=None, *more):
            if augment is not None:
                self.ids.append([data.ids[r] for r in rows])
            return batch(data, rows, augment, *more)

        def step_(group, state):
            step(group, state)
            self.steps += 1

        def validate_(*arguments):
            self.validations += 1
            return validate(*arguments)

        watch = self

        class Stop:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            @property
            def requested(self):
                kind, count = watch.stop_at or ("step", 10**9)
                return (watch.steps if kind == "step" else watch.validations) >= count

        monkeypatch.setattr(LoadedSet, "batch", batch_)
        monkeypatch.setattr(loop, "_step", step_)
        monkeypatch.setattr(loop, "validate", validate_)
        monkeypatch.setattr(loop, "StopRequest", Stop)


def test_F1_stopped_anywhere_and_resumed_is_as_never_stopped(toy, tmp_path, monkeypatch):
    watch = Watch(monkeypatch)
    loop.train(toy.recipe(tmp_path / "whole", *FULL))
    whole_ids, steps = watch.ids, watch.steps
    assert steps >= 9
    per_epoch = len(whole_ids) // 3
    assert sorted(i for ids in whole_ids[:per_epoch] for i in ids) == sorted(f"train{n}" for n in range(14))
    assert whole_ids[:per_epoch] != whole_ids[per_epoch : 2 * per_epoch]

    moments = [("step", n) for n in {1, *range(0, steps, 4), steps - 1}] + [("validation", n) for n in (1, 3)]
    for kind, count in moments:
        exp = tmp_path / f"{kind}{count}"
        recipe = toy.recipe(exp, *FULL)
        watch.ids, watch.steps, watch.validations, watch.stop_at = [], 0, 0, (kind, count)
        with pytest.raises(loop.Interrupted, match=r"stopped in epoch \d; saved .*last\.pt; go on with --resume"):
            loop.train(recipe)
        watch.stop_at = None
        loop.train(recipe, resume=True)
        assert watch.ids == whole_ids, exp
        assert compare_trainings(tmp_path / "whole", exp)[1] == []
        epochs = [e for e in map(json.loads, (exp / "log.jsonl").read_text().splitlines()) if e["event"] == "epoch"]
        assert [e["epoch"] for e in epochs] == [1, 2, 3]


def test_F1_killed_hard_between_checkpoints(toy, tmp_path, monkeypatch):
    watch = Watch(monkeypatch)
    loop.train(toy.recipe(tmp_path / "whole", *FULL))
    whole_ids, per_epoch = watch.ids, watch.steps // 3
    watch.ids, watch.steps = [], 0
    step = loop._step

    def dies(group, state):
        if watch.steps == per_epoch + 2:
            raise MemoryError
        step(group, state)

    recipe = toy.recipe(tmp_path / "killed", *FULL)
    monkeypatch.setattr(loop, "_step", dies)
    with pytest.raises(MemoryError):
        loop.train(recipe)
    monkeypatch.setattr(loop, "_step", step)
    with open(tmp_path / "killed" / "log.jsonl", "a") as file:
        file.write('{"event": "epo')  # the kill cut a line
    watch.ids = []
    loop.train(recipe, resume=True)
    assert watch.ids == whole_ids[len(whole_ids) // 3 :]
    assert compare_trainings(tmp_path / "whole", tmp_path / "killed")[1] == []
    for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_schedule_by_time_goes_on_at_the_time_of_the_checkpoint(toy, tmp_path, monkeypatch):
    """On a clock that only batches move, a stopped training is the unbroken one."""
    watch = Watch(monkeypatch)
    now, batch = [0.0], LoadedSet.batch

    def ticks(*arguments):
        now[0] += 1
        return batch(*arguments)

    monkeypatch.setattr(LoadedSet, "batch", ticks)
    monkeypatch.setattr(Stopwatch, "_now", lambda self: now[0])
    by_time = (*FULL, "training.schedule={kind: cosine, warmup: 2, by: time}", "training.max_minutes=0.5")
    loop.train(toy.recipe(tmp_path / "whole", *by_time))
    for count in (4, watch.steps // 3, watch.steps - 1):
        exp = tmp_path / str(count)
        watch.steps, watch.stop_at = 0, ("step", count)
        with pytest.raises(loop.Interrupted):
            loop.train(toy.recipe(exp, *by_time))
        watch.stop_at = None
        now[0] += 1000  # between the two nothing is trained
        loop.train(toy.recipe(exp, *by_time), resume=True)
        assert compare_trainings(tmp_path / "whole", exp)[1] == []
    rates = [event["lr"] for event in map(json.loads, (exp / "log.jsonl").open()) if event["event"] == "epoch"]
    assert 0 < rates[2] < rates[1] < rates[0] < 3e-3


def test_F3_best_stays_byte_equal_when_a_resumed_run_gets_worse(toy, tmp_path, monkeypatch):
    learns = ("training.optimiser={name: adam, lr: 2.0e-2}", "training.schedule={kind: constant}")
    loop.train(toy.recipe(tmp_path, "training.epochs=10", *learns))
    assert load_checkpoint(tmp_path / "best.pt")["dev_per"] < 100
    best = (tmp_path / "best.pt").read_bytes()
    step = loop._step

    def spoil(group, state):
        step(group, state)
        with torch.no_grad():
            state.model.output.weight.zero_()
            state.model.output.bias[0] = 50.0  # nothing but blanks: PER 100

    monkeypatch.setattr(loop, "_step", spoil)
    loop.train(toy.recipe(tmp_path, "training.epochs=12", *learns), resume=True)
    assert (tmp_path / "best.pt").read_bytes() == best
    assert load_checkpoint(tmp_path / "last.pt")["training"]["counters"]["epoch"] == 12


@pytest.fixture
def trained(toy, tmp_path):
    loop.train(toy.recipe(tmp_path, "training.epochs=1"))
    return tmp_path


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name not in ("train.log", ".lock")}


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("training.optimiser.name=adamw", r"training\.optimiser\.name"),
        ("training.optimiser.lr=0.5", r"training\.optimiser\.lr"),
        ("model.encoder.layers=2", r"model\.encoder\.layers"),
        ("model.encoder.attention.kind=softmax", r"model\.encoder\.attention\."),
        ("seed=4", "seed"),
    ],
)
def test_resume_with_another_recipe_is_refused_and_harms_nothing(toy, trained, override, key):
    before = files(trained)
    with pytest.raises(AsrError, match=rf"these keys differ: .*{key}.*; put them back") as error:
        loop.train(toy.recipe(trained, "training.epochs=2", override), resume=True)
    assert "\n" not in str(error.value)
    assert files(trained) == before


def test_resume_may_change_what_is_not_the_training(toy, trained):
    free = ("training.epochs=2", "training.max_minutes=9", "name=other", "data.workers=2", "data.test={t: dev.jsonl}")
    loop.train(toy.recipe(trained, *free), resume=True)
    assert load_checkpoint(trained / "last.pt")["training"]["counters"]["epoch"] == 2


def test_a_checkpoint_older_than_a_key_of_the_recipe(toy, trained):
    saved = load_checkpoint(trained / "last.pt")
    del saved["recipe"]["training"]["schedule"]["patience"]
    save_checkpoint(trained / "last.pt", saved)
    with pytest.raises(AsrError, match=r"these keys differ: training\.schedule\.patience"):
        loop.train(toy.recipe(trained, "training.epochs=2", "training.schedule.patience=7"), resume=True)
    loop.train(toy.recipe(trained, "training.epochs=2"), resume=True)


def test_resume_with_other_data_is_refused(toy, trained):
    from asr.data.manifest import read_manifest, write_manifest

    manifest = toy.folder / "train.jsonl"
    original = manifest.read_bytes()
    try:
        write_manifest(manifest, read_manifest(manifest)[:-1])
        with pytest.raises(DataError, match="training or dev data have changed"):
            loop.train(toy.recipe(trained, "training.epochs=2"), resume=True)
    finally:
        manifest.write_bytes(original)


def test_resume_of_a_finished_training_ends_at_once(toy, trained):
    best = (trained / "best.pt").read_bytes()
    loop.train(toy.recipe(trained, "training.epochs=1"), resume=True)
    assert (trained / "best.pt").read_bytes() == best


def test_resume_where_there_is_nothing_starts_anew(toy, tmp_path):
    loop.train(toy.recipe(tmp_path / "new", "training.epochs=1"), resume=True)
    assert (tmp_path / "new" / "best.pt").is_file()


def test_a_damaged_last_is_one_line(toy, trained):
    good = (trained / "last.pt").read_bytes()
    (trained / "last.pt").write_bytes(good[: len(good) // 2])
    before = files(trained)
    with pytest.raises(DataError, match=r"last\.pt: not a readable checkpoint"):
        loop.train(toy.recipe(trained, "training.epochs=2"), resume=True)
    assert files(trained) == before


def test_weights_alone_cannot_be_resumed(toy, trained):
    shutil.copy(trained / "best.pt", trained / "last.pt")
    with pytest.raises(DataError, match=r"last\.pt: has weights only"):
        loop.train(toy.recipe(trained, "training.epochs=2"), resume=True)


def test_a_folder_in_use_is_left_alone(toy, trained):
    (trained / "log.jsonl").unlink()  # also when the log was lost
    before = files(trained)
    with pytest.raises(AsrError, match="holds a training already; add --resume, --overwrite or another exp=DIR"):
        loop.train(toy.recipe(trained))
    assert files(trained) == before


def test_somebody_elses_recipe_is_not_overwritten(toy, tmp_path):
    (tmp_path / "recipe.yaml").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(AsrError, match=r"recipe\.yaml is not from a training and would be overwritten"):
            loop.train(toy.recipe(tmp_path), overwrite=overwrite)
    assert (tmp_path / "recipe.yaml").read_text() == "mine"


def test_overwrite_starts_anew(toy, trained):
    (trained / "results").mkdir()
    (trained / "results" / "dev.json").write_text("{}")
    loop.train(toy.recipe(trained, "training.epochs=1", "seed=9"), overwrite=True)
    events = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["start", "epoch", "end"]
    assert load_checkpoint(trained / "best.pt")["recipe"]["seed"] == 9
    assert not (trained / "results" / "dev.json").exists(), "scores of weights that are gone"


def test_overwrite_with_bad_data_costs_nothing(toy, trained, tmp_path_factory):
    before = files(trained)
    empty = tmp_path_factory.mktemp("empty") / "dev.jsonl"
    empty.write_text((toy.folder / "dev.jsonl").read_text().replace('"duration"', '"length"'))
    with pytest.raises(DataError):
        loop.train(toy.recipe(trained, f"data.dev={empty}"), overwrite=True)
    assert files(trained) == before


def torchrun_starts(monkeypatch, restarts, run_id="b7"):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))


def test_restarted_before_it_cleared_the_folder_is_not_the_earlier_training(toy, trained, monkeypatch):
    """Restarts go on with what they began, and with nothing else; also where that has torchrun's name for theirs."""
    (trained / ".begun").write_text("b7")
    recipe = toy.recipe(trained)  # the same, so that going on would not be refused for another reason
    torchrun_starts(monkeypatch, 0)
    with monkeypatch.context() as dying:
        dying.setattr(loop, "prepare", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop.train(recipe, overwrite=True)
    torchrun_starts(monkeypatch, 1)
    before = files(trained)
    with pytest.raises(AsrError, match="holds a training already"):
        loop.train(recipe)
    assert files(trained) == before

    real, steps = loop._step, []

    def step(group, state):
        if len(steps) == 4:
            raise KeyboardInterrupt
        steps.append((state.counters.epoch, state.counters.group))
        real(group, state)

    monkeypatch.setattr(loop, "_step", step)
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy.recipe(trained, "training.save_minutes=1e-9"), overwrite=True)
    assert steps[0] == (0, 0), "not the earlier training gone on with"
    monkeypatch.setattr(loop, "_step", real)
    torchrun_starts(monkeypatch, 2)
    loop.train(recipe, overwrite=True)
    events = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [e["resumed"] for e in events if e["event"] == "start"] == [False, True]


def test_a_file_in_the_folders_place_is_one_line(toy, tmp_path):
    (tmp_path / "exp").write_text("")
    with pytest.raises(AsrError, match="exp: cannot be used as experiment folder"):
        loop.train(toy.recipe(tmp_path / "exp"))


def test_checkpoints_hold_tensors_and_plain_types(trained, tmp_path_factory):
    # `load_checkpoint` uses weights_only=True; what it gives must also be writable by it again, unchanged.
    content = load_checkpoint(trained / "last.pt")
    again = tmp_path_factory.mktemp("again")
    save_checkpoint(again / "last.pt", content)
    assert compare_trainings(trained, again, ("last.pt",))[1] == []
    assert {"recipe", "tokens", "cmvn", "model", "epoch", "dev_per", "versions", "training"} < content.keys()
    assert "training" not in load_checkpoint(trained / "best.pt")
