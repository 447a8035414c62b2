"""Mixed precision, compiling, speeds and first weights: each does what it says, and all together can be resumed."""

from __future__ import annotations

import math

import pytest
import torch

from asr.data.manifest import read_manifest
from asr.data.tokens import TokenTable, build_tokens
from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.errors import DataError, RecipeError
from asr.recipe_loader import load_recipe
from asr.report.log import read_log
from asr.train import loop
from asr.train.checkpoint import load_checkpoint
from asr.train.objective import losses
from asr.train.precision import Mixed
from asr.train.prepare import prepare
from asr.train.run import Run
from asr.train.same import compare_trainings
from asr.train.sets import keep_trainable, load_set
from asr.train.trial import Trial
from asr.train.warm_start import warm_start
from asr.train.world import World

CPU = torch.device("cpu")
EVERYTHING = (
    "model.encoder.layers=2", "model.encoder.dropout=0.2", "model.encoder.layer_drop=0.2",
    "model.encoder.stochastic_depth=0.2", "training.inter_ctc={}", "training.consistency={}",
    "training.spec_augment={freq_masks: 1, time_masks: 1}", "training.average={kind: ema, decay: 0.9}",
    "training.speeds=[0.9, 1.0, 1.1]", "training.precision=float16", "training.early_stop=9",
    "training.optimiser={name: adamw, lr: 3.0e-3}", "training.schedule=one_cycle", "training.batch_frames=600",
    'training.freeze=["frontend.*"]', "training.accumulate=2",
)  # fmt: skip


def test_everything_at_once_stopped_and_resumed_is_as_never_stopped(toy, tmp_path, monkeypatch):
    first = tmp_path / "first"
    loop.train(toy.recipe(first, "training.epochs=1"))
    everything = (*EVERYTHING, f"training.init={first}")
    loop.train(toy.recipe(tmp_path / "whole", *everything))
    steps = load_checkpoint(tmp_path / "whole" / "last.pt")["training"]["schedule"]["step"]
    step = loop._step
    for at in {2, steps // 2 + 1}:
        made = []

        class Stop:
            __enter__ = lambda self: self  # noqa: E731
            __exit__ = lambda *_: None  # noqa: E731

            @property
            def requested(self, made=made, at=at):
                return len(made) == at

        def step_(group, state, made=made):
            step(group, state)
            made.append(1)

        exp = tmp_path / f"stopped{at}"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_step", step_)
            patch.setattr(loop, "StopRequest", Stop)
            with pytest.raises(loop.Interrupted):
                loop.train(toy.recipe(exp, *everything))
        loop.train(toy.recipe(exp, *everything), resume=True)
        assert compare_trainings(tmp_path / "whole", exp)[1] == []


@pytest.fixture
def halves(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.precision=float16", "model.encoder.dropout=0")
    with Run(recipe, False, False) as run:
        yield prepare(recipe, run, World(recipe.training))


def test_a_scale_too_large_is_lowered_counted_and_nobodys_fault(halves, caplog):
    halves.mixed.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = {k: v.clone() for k, v in halves.model.state_dict().items()}
    loop._step([[0]], halves)
    assert (halves.counters.overflows, halves.counters.skipped, halves.counters.bad_steps) == (1, 0, 0)
    assert halves.mixed.scaler.get_scale() == 2.0**39
    assert all(torch.equal(v, before[k]) for k, v in halves.model.state_dict().items())
    assert "skipped" not in caplog.text
    for _ in range(40):
        loop._step([[0]], halves)
    assert not all(torch.equal(v, before[k]) for k, v in halves.model.state_dict().items())
    assert 1 < halves.counters.overflows < 40


def test_the_gradient_is_that_of_the_loss_whatever_its_scale(halves):
    halves.mixed = Mixed("float32", CPU)
    halves.mixed.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    seen = []
    halves.optimiser.step = lambda: seen.append([p.grad.clone() for p in halves.model.parameters()])
    loop._step([[0, 1]], halves)
    batch = halves.train.batch([0, 1])
    total = losses(halves.model, batch, halves.recipe, 0).total.sum() / sum(map(len, batch.targets))
    wanted = torch.autograd.grad(total, list(halves.model.parameters()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in wanted))
    clip = min(1.0, halves.recipe.training.clip / norm)
    for got, w in zip(seen[0], wanted, strict=True):
        torch.testing.assert_close(got, w * clip, atol=1e-5, rtol=1e-4)


def test_a_loss_that_is_not_finite_is_the_datas_fault_in_float16_too(halves):
    apply = halves.train.cmvn.apply
    halves.train.cmvn.apply = lambda x, speaker=None: apply(x, speaker) * math.nan
    loop._step([[0]], halves)
    assert (halves.counters.overflows, halves.counters.skipped) == (0, 1)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("attention", ["softmax", "linear", "{kind: lsh, bucket_size: 8}", "gated", "ssm"])
def test_in_16_bits_a_loss_is_near_and_in_float32(toy, tmp_path, precision, attention):
    recipe = toy.recipe(tmp_path, f"model.encoder.attention={attention}", "model.encoder.convolution=3")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens)
    torch.manual_seed(0)
    model = CtcModel(recipe.model, 16, len(tokens)).eval()
    batch = data.batch([0, 1, 2])
    wanted = losses(model, batch, recipe, 0).total
    mixed = Mixed(precision, CPU)
    with mixed.forward():
        got = losses(model, batch, recipe, 0).total
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, rtol=0.03, atol=0.0)
    mixed.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=precision == "float16")
    mixed.backward(got.sum() / sum(map(len, batch.targets)))
    grads = [p.grad for p in model.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in grads)


@pytest.mark.parametrize("attention", ["linear", "{kind: lsh, bucket_size: 8}"])
def test_compiled_blocks_give_the_same_numbers_and_are_not_compiled_for_every_shape(
    toy, tmp_path, monkeypatch, attention
):
    made = []
    torch._dynamo.reset()
    real = torch.nn.Module.compile

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: real(self, backend=backend, **how))
    options = (f"model.encoder.attention={attention}", "model.encoder.layers=3", "model.encoder.convolution=3")
    graphs = {}
    counting = Trial(99, 99, lambda epoch, step, of: graphs.update({epoch: len(made)}))
    loop.train(toy.recipe(tmp_path / "compiled", *options, "training.compile=true"), trial=counting)
    # The second epoch comes after the first validation.
    assert 0 < graphs[1] < graphs[2] == graphs[3]
    loop.train(toy.recipe(tmp_path / "eager", *options))
    left, right = (load_checkpoint(tmp_path / n / "last.pt")["model"] for n in ("compiled", "eager"))
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-4, rtol=1e-3)
    torch._dynamo.reset()


def test_the_features_of_a_speed_are_those_of_the_sound_played_so(toy, tmp_path):
    from asr.audio import fbank, read_audio
    from asr.audio.resample import resample

    recipe = toy.recipe(tmp_path, "training.speeds=[0.9, 1.0, 1.25]", f"data.features={tmp_path}")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens, speeds=recipe.training.speeds)
    assert list(data.speeds) == [0.9, 1.0, 1.25]
    audio = read_audio(read_manifest(recipe.data.train)[0].audio)
    for speed, store in data.speeds.items():
        samples = resample(audio.samples, round(1000 * speed), 1000)
        assert len(samples) == math.ceil(len(audio.samples) / speed)
        torch.testing.assert_close(store[data.ids[0]], fbank(samples, recipe.features))
    # The tone of a phone moves with the speed: 10 ms frames of the loudest band, at 8 kHz and twice the pitch for 1.25.
    loudest = [int(store[data.ids[0]].mean(0).argmax()) for store in data.speeds.values()]
    assert loudest == sorted(loudest)


def test_every_epoch_draws_a_speed_for_each_utterance_and_both_views_have_it(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.speeds=[0.9, 1.1]", "training.spec_augment.time_masks=2")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens, speeds=recipe.training.speeds)
    rows = list(range(14))
    draws = [data.frames_of(f"3/{epoch}") for epoch in range(20)]
    assert data.frames_of("3/7") == draws[7]
    for row in rows:
        seen = {frames[row] for frames in draws}
        assert seen == {store.frames(data.ids[row]) for store in data.speeds.values()}
    batch = data.batch(rows, recipe.training.spec_augment, "3/7", 2)
    assert batch.lengths.tolist() == draws[7] * 2
    assert not torch.equal(batch.features[:14], batch.features[14:]), "but not the same masks"
    assert data.batch(rows).lengths.tolist() == list(data.frames), "whoever does not train hears the sound as it is"


def test_what_is_too_short_at_the_highest_speed_is_left_out(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.speeds=[1.0, 2.0]", "model.frontend={kind: none}")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens, speeds=recipe.training.speeds)
    frames = data.speeds[2.0].frames(data.ids[0])
    data.targets = [[1, 2] * frames, *data.targets[1:]]
    kept = keep_trainable(data, recipe, lambda n: n)
    assert data.ids[0] in kept.dropped
    assert f"{frames} feature frames give {frames}" in kept.dropped[data.ids[0]]
    assert kept.speeds == data.speeds


def test_an_utterance_must_fit_a_batch_with_all_its_views(toy, tmp_path):
    recipe = toy.recipe(tmp_path, "training.consistency={}", "training.batch_frames=150")
    tokens = build_tokens(recipe.tokens, read_manifest(recipe.data.train))
    data = load_set(recipe, "train", recipe.data.train, tokens)
    kept = keep_trainable(data, recipe, lambda n: n)
    assert max(kept.frames) <= 75 < max(data.frames)
    assert any("more than training.batch_frames 150, shared by 2 views" in why for why in kept.dropped.values())


@pytest.fixture(scope="module")
def teacher(toy, tmp_path_factory):
    exp = tmp_path_factory.mktemp("teacher")
    loop.train(toy.recipe(exp, "training.epochs=1", "model.encoder.layers=2"))
    return exp


def test_first_weights_are_taken_where_they_fit(toy, teacher):
    saved = load_checkpoint(teacher / "best.pt")
    tokens = TokenTable.from_state(saved["tokens"])
    config = saved["recipe"]["model"]
    config["encoder"] |= {"layers": 1, "feedforward": 48, "attention": {"kind": "softmax"}, "convolution": 3}
    model = CtcModel(ModelConfig.model_validate(config), 16, len(tokens))
    fresh = {k: v.clone() for k, v in model.state_dict().items()}
    loaded = warm_start(model, tokens, teacher)
    for name, value in model.named_parameters():
        if name in loaded.taken:
            assert torch.equal(value, saved["model"][name]), name
        else:
            assert torch.equal(value, fresh[name]), name
    assert set(loaded.taken) >= {"frontend.project.weight", "output.weight", "output.bias"}
    assert loaded.reshaped
    assert all("feedforward" in name for name in loaded.reshaped)
    assert loaded.missing
    assert all("convolution" in name or "norms" in name for name in loaded.missing)
    assert loaded.unused
    assert all("blocks.1." in name for name in loaded.unused)
    assert "of another shape: encoder.blocks.0.feedforward" in loaded.text()


def test_tokens_keep_their_rows_wherever_they_stand(teacher):
    saved = load_checkpoint(teacher / "best.pt")
    tokens = TokenTable.from_state(saved["tokens"])
    state = {**tokens.state(), "symbols": [tokens.symbols[0], "new", *tokens.symbols[:1:-1]]}
    turned = TokenTable.from_state(state)
    model = CtcModel(ModelConfig.model_validate(saved["recipe"]["model"]), 16, len(turned))
    loaded = warm_start(model, turned, teacher)
    assert loaded.symbols == len(turned) - 1
    for row, symbol in enumerate(turned.symbols):
        if symbol != "new":
            other = saved["model"]["output.weight"][tokens.symbols.index(symbol)]
            assert torch.equal(model.output.weight[row], other)


def test_a_training_starts_from_them_and_says_what_it_took(toy, tmp_path, teacher, caplog):
    recipe = toy.recipe(tmp_path, f"training.init={teacher}", "training.epochs=1", "training.optimiser.lr=1e-12")
    loop.train(recipe)
    trained, first = (load_checkpoint(path)["model"] for path in (tmp_path / "last.pt", teacher / "best.pt"))
    torch.testing.assert_close(trained["frontend.project.weight"], first["frontend.project.weight"])
    assert "first weights from" in caplog.text
    assert '"event": "init"' in (tmp_path / "log.jsonl").read_text()
    assert read_log(tmp_path).finished


def test_first_weights_that_are_not_there_or_fit_nowhere(toy, tmp_path, teacher):
    with pytest.raises(RecipeError, match=r"training\.init: neither an experiment folder with a best\.pt nor a checkp"):
        load_recipe(toy.file, [f"training.init={tmp_path}"], check_files=True)
    model = CtcModel(ModelConfig.model_validate({"encoder": {"kind": "bilstm", "layers": 1, "hidden": 3}}), 9, 5)
    tokens = TokenTable.from_state(load_checkpoint(teacher / "best.pt")["tokens"])
    with pytest.raises(DataError, match=r"training\.init: no parameter of it fits this model"):
        warm_start(model, tokens, teacher)
