import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from asr.errors import AsrError, RecipeError
from asr.recipe_loader import load_recipe
from asr.report import training
from asr.report.compare import compare, write
from asr.report.experiments import differences, resolve
from asr.report.table import Rate, columns, notes
from asr.report.training import TrainingFailed


def results(rate):
    one = {
        "unit": "PER",
        "rate": rate,
        "interval": [rate - 1, rate + 1],
        "rules": ["stress folded"],
        "audio_seconds": 100.0,
        "decoding_seconds": 2.0,
    }
    return {"test": one}


class Trainer:
    """Stands for the training process: remembers what it was asked to do."""

    def __init__(self, fake, fails=(), **written):
        self.fake, self.fails, self.written, self.calls = fake, fails, written, []

    def __call__(self, experiment, retrain):
        self.calls.append((experiment.name, retrain))
        if experiment.name in self.fails:
            raise TrainingFailed(f"training of {experiment.name} failed")
        self.fake.train(experiment.exp, experiment.recipe, **self.written)


def run(experiments, trainer, retrain=False):
    return compare(experiments, evaluate=lambda one: results(20.0), retrain=retrain, train=trainer)


def test_trains_what_is_not_finished_and_reads_the_numbers_off_the_log(fake):
    experiments = resolve([fake.recipe("lsh", "lsh"), fake.recipe("softmax")])
    fake.train(experiments[1].exp, experiments[1].recipe, seconds=(9.0, 4.0, 4.0, 4.0))
    trainer = Trainer(fake)
    comparison = run(experiments, trainer)
    assert trainer.calls == [("lsh", False)]
    lsh, softmax = comparison.rows
    assert lsh.rates == {"test": Rate("PER", 20.0, 19.0, 21.0)}
    assert (lsh.dev_rate, lsh.epoch_seconds, lsh.parameters, lsh.epochs) == (30.0, 2.1, 1234567, 4)
    assert lsh.ratio == pytest.approx(2.1 / 4.0)
    assert (softmax.ratio, softmax.baseline, lsh.baseline) == (1.0, True, False)
    assert lsh.frames_per_second == pytest.approx(6000 / 2.1)
    assert lsh.rtf == pytest.approx(0.02)
    assert lsh.peak_memory_mb == 404.0
    assert lsh.minutes == pytest.approx((9.0 + 2.0 + 2.2 + 2.1 + 4) / 60)
    assert (lsh.rules, comparison.warnings) == (("stress folded",), [])


def test_interrupted_training_is_taken_up_again(fake):
    (one,) = resolve([fake.recipe("softmax")])
    fake.train(one.exp, one.recipe, end=False)
    trainer = Trainer(fake)
    run([one], trainer)
    assert trainer.calls == [("softmax", False)]
    assert one.resumable


def test_retrain_trains_all_recipes_but_never_a_folder(fake):
    experiments = resolve([fake.recipe("softmax"), fake.recipe("lsh", "lsh")])
    for one in experiments:
        fake.train(one.exp, one.recipe)
    trainer = Trainer(fake)
    run([experiments[0], *resolve([experiments[1].exp])], trainer, retrain=True)
    assert trainer.calls == [("softmax", True)]


def test_one_failed_training_leaves_the_others_alone(fake, tmp_path):
    experiments = resolve([fake.recipe("softmax"), fake.recipe("lsh", "lsh"), fake.recipe("linear", "linear")])
    comparison = run(experiments, Trainer(fake, fails=["lsh"]))
    assert [bool(row.rates) for row in comparison.rows] == [True, False, True]
    assert [row.model for row in comparison.failed] == ["lsh"]
    assert "lsh: training of lsh failed" in write(comparison, tmp_path / "out")[0].read_text()


def test_one_failed_evaluation_leaves_the_others_alone(fake):
    experiments = resolve([fake.recipe("softmax"), fake.recipe("lsh", "lsh")])

    def evaluate(one):
        if one.name == "softmax":
            raise AsrError("no such manifest")
        return results(20.0)

    softmax, lsh = compare(experiments, evaluate=evaluate, train=Trainer(fake)).rows
    assert (softmax.error, softmax.epoch_seconds) == ("no such manifest", 2.1)  # what is known is still shown
    assert lsh.error is None


def test_an_interrupt_stops_everything(fake):
    calls = []

    def interrupted(experiment, retrain):
        calls.append(experiment.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(resolve([fake.recipe("softmax"), fake.recipe("lsh", "lsh")]), interrupted)
    assert calls == ["softmax"]


def test_recipe_changed_since_training_is_refused_with_the_keys(fake):
    recipe = fake.recipe("softmax")
    (one,) = resolve([recipe])
    fake.train(one.exp, one.recipe)
    trainer = Trainer(fake)
    (row,) = run(resolve([recipe], ["training.epochs=7"]), trainer).rows
    assert "training.epochs: 50 → 7" in row.error
    assert (row.dev_rate, row.epoch_seconds, row.rates) == (None, None, {})  # they belong to the other recipe
    assert trainer.calls == []
    (row,) = run(resolve([recipe], ["scoring.bootstrap=10"]), trainer).rows  # does not touch the training
    assert row.error is None


def test_what_is_wrong_is_said_before_a_training_and_beside_the_table_alone_where_none_follows(fake, caplog):
    old, new = fake.recipe("old"), fake.recipe("new", "lsh", "seed: 2\n")
    (one,) = resolve([old])
    fake.train(one.exp, one.recipe)
    old.write_text(old.read_text() + "training: {epochs: 7}\n")
    trainer = Trainer(fake)

    class Watched(Trainer):
        def __call__(self, experiment, retrain):
            said.extend(caplog.messages)
            super().__call__(experiment, retrain)

    said = []
    first = run(resolve([old, new]), Watched(fake))
    assert "old and new differ in seed: 1 → 2" in said
    assert [line for line in said if "training.epochs: 50 → 7" in line] == [first.rows[0].error]
    caplog.clear()
    again = run(resolve([old, new]), trainer)
    assert (again.rows[0].error, again.warnings) == (first.rows[0].error, first.warnings)
    assert trainer.calls == []
    assert [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []


def test_unequal_conditions_are_named(fake):
    recipes = [fake.recipe("a"), fake.recipe("b", "lsh", "seed: 2\ntraining: {batch_frames: 999, epochs: 3}\n")]
    comparison = run(resolve(recipes), Trainer(fake))
    assert comparison.warnings == [
        "a and b differ in seed: 1 → 2",
        "a and b differ in training.batch_frames: 20000 → 999",
    ]


class TestBatchesThatFit:
    """Recipes with `training.batch_frames: auto`, and `fits` in place of the measurement."""

    FITS = {"softmax": 3100, "lsh": 9000, "linear": 12000}  # noqa: RUF012
    AUTO = "training: {batch_frames: auto}\n"

    def run(self, experiments, trainer, **more):
        self.asked = []

        def fits(one):
            self.asked.append(one.name)
            if one.name not in self.FITS:
                raise AsrError("nothing fits")
            return self.FITS[one.name]

        def train(one, retrain):
            """As the training does, which finds what is not given."""
            trainer(replace(one, recipe=one.recipe.settled(self.FITS[one.name])), retrain)
            self.overrides[one.name] = one.overrides

        self.overrides = {}
        return compare(experiments, evaluate=lambda one: results(20.0), train=train, find_batch=fits, **more)

    def test_one_size_that_fits_all(self, fake):
        recipes = [fake.recipe("softmax", more=self.AUTO), fake.recipe("linear", "linear", self.AUTO)]
        comparison = self.run(resolve(recipes, ["training.epochs=7"]), Trainer(fake))
        assert self.asked == ["softmax", "linear"]
        assert set(self.overrides.values()) == {("training.epochs=7", "training.batch_frames.found=3100")}
        assert [row.batch_frames for row in comparison.rows] == [3100, 3100]
        assert (comparison.failed, comparison.warnings) == ([], [])
        assert "Batches: at most 3,100 feature frames with padding, the same for all." in notes(comparison.rows)
        assert "frames/batch" not in [column.header for column in columns(comparison.rows)]
        self.run(resolve(recipes, ["training.epochs=7"]), trainer := Trainer(fake))
        assert (self.asked, trainer.calls) == ([], []), "all are trained: nothing is measured again"

    def test_numbers_that_stand_are_kept_to(self, fake):
        """One in a recipe; one that an earlier comparison found."""
        number = fake.recipe("softmax", more="training: {batch_frames: 4000}\n")
        experiments = resolve([number, fake.recipe("lsh", "lsh", self.AUTO)])
        rows = self.run(experiments, Trainer(fake)).rows
        assert ([row.batch_frames for row in rows], self.asked) == ([4000, 4000], ["lsh"])
        experiments = resolve([experiments[1].exp, fake.recipe("linear", "linear", self.AUTO)])
        rows = self.run(experiments, Trainer(fake)).rows
        assert ([row.batch_frames for row in rows], self.asked) == ([4000, 4000], ["linear"])

    def test_a_number_that_does_not_fit_is_warned_of(self, fake):
        number = fake.recipe("lsh", "lsh", "training: {batch_frames: 4000}\n")
        comparison = self.run(resolve([number, fake.recipe("softmax", more=self.AUTO)]), Trainer(fake))
        assert [row.batch_frames for row in comparison.rows] == [4000, 3100]
        assert comparison.warnings == ["lsh and softmax differ in training.batch_frames: 4000 → 3100"]

    def test_each_its_own(self, fake):
        recipes = [fake.recipe("softmax", more=self.AUTO), fake.recipe("lsh", "lsh", self.AUTO)]
        comparison = self.run(resolve(recipes), Trainer(fake), own_batches=True)
        assert (self.asked, set(self.overrides.values())) == ([], {()})
        assert [row.batch_frames for row in comparison.rows] == [3100, 9000]
        (warning,) = comparison.warnings
        assert warning.startswith("each with the largest batches that fit it (--batches own): softmax, lsh;")
        assert [column.text(comparison.rows[1]) for column in columns(comparison.rows)][-1] == "9,000"
        assert any(note.startswith("Batches: of unequal sizes") for note in notes(comparison.rows))
        # Trained so, they are not what a comparison with equal batches wants, and it says so.
        comparison = self.run(resolve(recipes), trainer := Trainer(fake))
        assert comparison.warnings == ["softmax and lsh differ in training.batch_frames: 3100 → 9000"]
        assert trainer.calls == []
        rows = self.run(resolve(recipes), trainer, retrain=True).rows
        assert ([row.batch_frames for row in rows], self.asked) == ([3100, 3100], ["softmax", "lsh"])

    def test_own_batches_of_recipes_with_numbers_change_nothing_and_say_so(self, fake):
        recipes = [fake.recipe("softmax"), fake.recipe("lsh", "lsh", "training: {batch_frames: 999}\n")]
        assert self.run(resolve(recipes), Trainer(fake), own_batches=True).warnings == [
            "softmax and lsh differ in training.batch_frames: 20000 → 999",
            "no recipe has training.batch_frames: auto, so that --batches own changes nothing",
        ]

    def test_one_that_nothing_fits_leaves_the_others_alone(self, fake):
        recipes = [fake.recipe("huge", more=self.AUTO), fake.recipe("lsh", "lsh", self.AUTO)]
        huge, lsh = self.run(resolve(recipes), Trainer(fake)).rows
        assert (huge.error, huge.batch_frames, lsh.error, lsh.batch_frames) == ("nothing fits", None, None, 9000)


def test_unequal_machines_are_named(fake):
    experiments = resolve([fake.recipe("a"), fake.recipe("b", "lsh")])
    fake.train(experiments[0].exp, experiments[0].recipe, threads=2)
    (warning,) = run(experiments, Trainer(fake)).warnings
    assert warning == "times are not comparable: a on cpu with 2 threads; b on cpu with 1 thread"


def test_unequal_training_data_are_named(fake):
    experiments = resolve([fake.recipe("a"), fake.recipe("b", "lsh")])
    fake.train(experiments[0].exp, experiments[0].recipe, utterances=29, frames=5900)
    (warning,) = run(experiments, Trainer(fake)).warnings
    assert warning == "trained on unequal data: a on 29 utterances, 5900 frames; b on 30 utterances, 6000 frames"


def test_published_row_stands_beside_ours_with_its_own_ratio(fake):
    published = "published: {{source: 'A paper, table 3', per: {}, epoch_seconds: {}}}\n"
    recipes = [
        fake.recipe("softmax", more=published.format(5.12, 2711)),
        fake.recipe("linear", "linear", published.format(8.08, 824)),
    ]
    rows = run(resolve(recipes), Trainer(fake)).rows
    assert [row.label for row in rows] == ["softmax", "linear", "softmax (published)", "linear (published)"]
    assert (rows[3].dev_rate, rows[3].published) == (8.08, "A paper, table 3")
    assert rows[3].ratio == pytest.approx(824 / 2711)


def test_files_written(fake, tmp_path):
    paths = write(run(resolve([fake.recipe("softmax")]), Trainer(fake)), tmp_path / "out")
    assert sorted(path.name for path in paths) == [
        "compare.json",
        "comparison.csv",
        "comparison.md",
        "loss_by_epoch.png",
        "rate_by_epoch.png",
        "rate_by_time.png",
    ]
    assert all(path.stat().st_size > 100 for path in paths)
    (row,) = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert row["rates"]["test"] == {"unit": "PER", "value": 20.0, "low": 19.0, "high": 21.0}


def test_resolve_refuses_what_it_cannot_use(fake, tmp_path):
    recipe = fake.recipe("softmax")
    with pytest.raises(RecipeError, match="share the experiment folder"):
        resolve([recipe, recipe])
    with pytest.raises(RecipeError, match="no such recipe"):
        resolve([tmp_path / "absent.yaml"])
    with pytest.raises(RecipeError, match=r"no recipe\.yaml"):
        resolve([tmp_path])
    (one,) = resolve([recipe])
    fake.train(one.exp, one.recipe)
    with pytest.raises(RecipeError, match="changes nothing in a trained experiment"):
        resolve([one.exp], ["seed=3"])


def test_equal_names_are_told_apart(fake):
    names = [
        one.name for one in resolve([fake.recipe("a", more="name: x\n"), fake.recipe("b", more="name: x\nexp: e/b\n")])
    ]
    assert names == ["x (exp/x)", "x (e/b)"]
    recipes = [fake.recipe("c", more="exp: c/exp/x\n"), fake.recipe("d", more="exp: d/exp/x\n"), fake.recipe("e")]
    recipes = [load_recipe(path) for path in recipes]
    for recipe in recipes:
        fake.train(recipe.exp, recipe.model_copy(update={"name": recipe.name.replace("d", "c")}))
    assert [one.name for one in resolve([recipe.exp for recipe in recipes])] == ["c (c/exp/x)", "c (d/exp/x)", "e"]


def test_differences_lists_dotted_keys(fake):
    (a,) = resolve([fake.recipe("a")])
    (b,) = resolve([fake.recipe("b", "lsh")])
    found = differences(a.recipe, b.recipe, only=["model"])
    assert "model.encoder.attention.kind: softmax → lsh" in found
    assert not any(line.startswith("name") for line in found)


class TestProcess:
    """The training process, with a small program in place of `asr train`."""

    @pytest.fixture
    def program(self, monkeypatch):
        def use(code):
            real = subprocess.Popen
            monkeypatch.setattr(
                training.subprocess, "Popen", lambda command, **k: real([sys.executable, "-c", code, *command[3:]], **k)
            )

        return use

    def test_failure_names_the_model_and_its_log(self, fake, program):
        program("import sys; sys.exit(3)")
        (one,) = resolve([fake.recipe("softmax")])
        with pytest.raises(TrainingFailed, match=r"softmax failed with exit code 3.*train\.log"):
            training.train(one)

    def test_the_search_for_a_batch_reads_what_is_printed(self, fake, program):
        program("import sys; print(3100 if sys.argv[-1] == '--find-batch' else 0)")
        (one,) = resolve([fake.recipe("softmax")])
        assert training.find_batch(one) == 3100

    def test_a_failed_search_says_so(self, fake, program):
        program("import sys; sys.exit(1)")
        (one,) = resolve([fake.recipe("softmax")])
        with pytest.raises(TrainingFailed, match="the search for softmax's batch failed with exit code 1; see above"):
            training.find_batch(one)

    def test_interrupted_training_interrupts_the_comparison(self, fake, program):
        program("import sys; sys.exit(130)")
        with pytest.raises(KeyboardInterrupt):
            training.train(resolve([fake.recipe("softmax")])[0])

    def test_arguments(self, fake, program, tmp_path):
        program(f"import sys; open({str(tmp_path / 'args')!r}, 'w').write(' '.join(sys.argv[1:]))")
        recipe = fake.recipe("softmax")
        (one,) = resolve([recipe], ["training.epochs=7"])
        training.train(one)
        assert (tmp_path / "args").read_text() == f"train {recipe} training.epochs=7"
        fake.train(one.exp, one.recipe, end=False)
        training.train(one)
        assert (tmp_path / "args").read_text().endswith(" --resume")

    @pytest.fixture
    def comparison(self, tmp_path):
        """Starts a comparison in a process of its own, with `child` in place of the training, which has begun."""
        started = []

        def start(child, grace=60.0, **more):
            (tmp_path / "child.py").write_text(
                f"import os, pathlib, signal, sys, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
                f"def begun(): (here / 'pid').write_text(str(os.getpid()))\n{child}"
            )
            driver = (
                "import subprocess, sys\n"
                "from types import SimpleNamespace\n"
                "from asr.report import training\n"
                "real = subprocess.Popen\n"
                "child = [sys.executable, sys.argv[1]]\n"
                "training.subprocess.Popen = lambda command, **k: real(child, **k)\n"
                f"training.GRACE = {grace}\n"
                "one = SimpleNamespace(name='x', exp='exp', recipe_file='x.yaml', overrides=(), resumable=False)\n"
                "try:\n    training.train(one)\n"
                "except KeyboardInterrupt:\n    sys.exit(130)\n"
            )
            (tmp_path / "pid").unlink(missing_ok=True)
            process = subprocess.Popen([sys.executable, "-c", driver, tmp_path / "child.py"], **more)
            started.append(process)
            until = time.monotonic() + 60
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            return process, int((tmp_path / "pid").read_text())

        yield start
        for process in started:
            process.kill()
            process.wait()

    SAVES = (
        "def save(*_):\n    (here / 'saved').touch()\n    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, save)\nbegun()\ntime.sleep(60)\n"
    )
    DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nbegun()\ntime.sleep(60)\n"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupt_lets_the_training_save_and_leaves_no_child(self, comparison, tmp_path, number):
        process, child = comparison(self.SAVES)
        process.send_signal(number)
        assert process.wait(timeout=30) == 130
        assert (tmp_path / "saved").exists()
        assert not running(child)

    def test_in_the_background_too_where_a_shell_lets_no_sigint_through(self, comparison, tmp_path):
        process, child = comparison(self.SAVES, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130
        assert (tmp_path / "saved").exists()
        assert not running(child)

    def test_a_training_that_does_not_end_is_killed_when_its_time_is_up(self, comparison):
        process, child = comparison(self.DEAF, grace=0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130
        assert not running(child)

    def test_a_second_interrupt_kills_it(self, comparison):
        process, child = comparison(self.DEAF)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running(child)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert not running(child)


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
