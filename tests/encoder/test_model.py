"""The promises of the whole acoustic model: padding changes nothing, lengths are exact, it can learn."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from asr.attention.masks import frame_mask
from asr.ctc.greedy import greedy_decode
from asr.ctc.loss import ctc_loss_sum, reference_tokens
from asr.encoder.bilstm import BilstmEncoder
from asr.encoder.config import BilstmConfig, ModelConfig
from asr.encoder.model import CtcModel

FRONTENDS = {
    "none": {"kind": "none"},
    "stack3": {"kind": "stack", "factor": 3},
    "conv2": {"kind": "conv", "factor": 2, "channels": 4},
    "conv4": {"kind": "conv", "factor": 4, "channels": 4},
}
MIXERS = {
    "softmax": {"kind": "softmax"},
    "materialised": {"kind": "softmax", "implementation": "materialised"},
    "linear": {"kind": "linear"},
    "linear-causal": {"kind": "linear", "causal": True, "chunk": 8},
    "favor": {"kind": "linear", "feature_map": {"kind": "favor", "size": 8}},
    "lsh": {"kind": "lsh", "bucket_size": 8, "rounds": 2},
    "hybrid": None,  # three of them in a stack
}
STACKS = ["bilstm", "lstm"]
LENGTHS = [37, 61, 1, 0, 2, 20]
DIM = 11  # of the features: odd, so that the convolutions round


def build(frontend, mixer, **more):
    if mixer in STACKS:
        encoder = {"kind": mixer, "layers": 2, "hidden": 8} | more
    else:
        encoder = {"kind": "transformer", "layers": 2, "dim": 16, "heads": 2, "feedforward": 24} | more
        if mixer == "hybrid":
            encoder["layers"] = [{"attention": MIXERS[name]} for name in ("linear-causal", "softmax", "lsh")]
        else:
            encoder["attention"] = MIXERS[mixer]
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"frontend": FRONTENDS[frontend], "encoder": encoder})
    model = CtcModel(config, DIM, 7).eval()
    with torch.no_grad():  # biases as large as after training: those are what leaks out of padding
        for name, p in model.named_parameters():
            if p.dim() == 1 and "norm" not in name:
                p.uniform_(-1, 1)
    return model


def pad(rows, fill, extra=5):
    batch = torch.full((len(rows), max(map(len, rows)) + extra, DIM), fill)
    for i, row in enumerate(rows):
        batch[i, : len(row)] = row
    return batch


def assert_padding_changes_nothing(model):
    rows = [torch.randn(n, DIM) for n in LENGTHS]
    alone = [model(row[None], torch.tensor([len(row)])) for row in rows]
    for fill, order in [(0.0, range(6)), (1e4, reversed(range(6))), (float("nan"), (2, 5, 0, 3, 1, 4))]:
        order = list(order)
        log_probs, lengths = model(pad([rows[i] for i in order], fill), torch.tensor([LENGTHS[i] for i in order]))
        assert torch.isfinite(log_probs).all()
        for at, i in enumerate(order):
            n = int(lengths[at])
            assert n == alone[i][1].item() == alone[i][0].shape[1]
            torch.testing.assert_close(log_probs[at, :n], alone[i][0][0], atol=1e-4, rtol=0)


BLOCKS = [
    {"convolution": c, "norm": n, "positions": p}
    for c, n, p in itertools.product((0, 5), ("pre", "post"), ("none", "sinusoidal", "rotary"))
] + [{"block": "macaron", "norm": "post"}, {"block": "conformer", "convolution": 5}]


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("mixer", [*MIXERS, *STACKS])
@torch.inference_mode()
def test_H1_alone_and_in_any_batch(frontend, mixer):
    for block in [{}] if mixer in STACKS else BLOCKS:
        assert_padding_changes_nothing(build(frontend, mixer, **block))


def test_H1_padding_gives_and_gets_no_gradient():
    model = build("stack3", "softmax", convolution=5)
    x = torch.randn(2, 30, DIM, requires_grad=True)
    log_probs, lengths = model(x, torch.tensor([30, 13]))
    log_probs[1, : int(lengths[1])].square().sum().backward()
    assert x.grad[0].abs().max() == 0
    assert x.grad[1, 13:].abs().max() == 0
    assert x.grad[1, :13].abs().sum(-1).min() > 0


@pytest.mark.parametrize("frontend", FRONTENDS)
@torch.inference_mode()
def test_output_length_is_what_comes_out(frontend):
    factor = {"none": 1, "stack3": 3, "conv2": 2, "conv4": 4}[frontend]
    for mixer in ("linear", *STACKS):
        model = build(frontend, mixer)
        together = model(torch.randn(41, 40, DIM), torch.arange(41))[1].tolist()
        for frames in range(41):
            log_probs, lengths = model(torch.randn(1, frames, DIM), torch.tensor([frames]))
            expected = -(-frames // factor)
            assert log_probs.shape == (1, expected, 7)
            assert lengths.tolist() == [expected]
            assert model.output_length(frames) == together[frames] == expected


@torch.inference_mode()
def test_log_probs_are_float32_probabilities_also_under_autocast():
    model = build("conv2", "softmax", convolution=5)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs, _ = model(torch.randn(2, 20, DIM), torch.tensor([20, 9]))
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 10))


def test_every_parameter_learns():
    for frontend, mixer in itertools.product(("stack3", "conv4"), [*MIXERS, *STACKS]):
        more = {} if mixer in STACKS else {"convolution": 5, "block": "conformer"}
        model = build(frontend, mixer, **more).train()
        log_probs, lengths = model(torch.randn(2, 30, DIM), torch.tensor([30, 25]))
        ctc_loss_sum(log_probs, lengths, [[1, 2], [3]]).backward()
        silent = [n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
        assert silent == [], (frontend, mixer)


@pytest.mark.parametrize("mixer", [*MIXERS, *STACKS])
def test_four_utterances_are_learnt_by_heart(mixer):
    torch.manual_seed(1)
    targets = [[1, 2, 3, 4], [4, 4, 1], [2, 5, 2, 5, 6], [6, 3]]
    templates = torch.randn(7, DIM)
    # Each token holds for three frames and is followed by three of token 0, the blank's sound.
    rows = [torch.cat([templates[t].expand(3, -1) for token in target for t in (token, 0)]) for target in targets]
    rows = [row + 0.3 * torch.randn_like(row) for row in rows]
    features, lengths = pad(rows, float("nan")), torch.tensor([len(r) for r in rows])
    more = {"layers": 1, "hidden": 24} if mixer in STACKS else {"layers": 1, "convolution": 5}
    model = build("none", mixer, dropout=0.0, **more).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = ctc_loss_sum(*model(features, lengths), targets) / reference_tokens(targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss < 0.05:
            break
    with torch.inference_mode():
        decoded = greedy_decode(*model.eval()(features, lengths))
    assert [[t.id for t in row] for row in decoded] == targets
    assert loss.item() < 0.1, "nats per token"


@torch.inference_mode()
def test_causal_lstm_stack_streams_and_sees_no_later_frame():
    torch.manual_seed(0)
    encoder = BilstmEncoder(BilstmConfig(kind="lstm", layers=2, hidden=6), 5).eval()
    x = torch.randn(2, 20, 5)
    whole, state, pieces = encoder(x, torch.tensor([20, 20])), encoder.initial_state(2), []
    for piece in x.split([1, 0, 12, 7], dim=1):
        y, state = encoder.step(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-6, rtol=1e-5)
    changed = x.clone()
    changed[:, 12:] += 1
    assert torch.equal(encoder(changed, torch.tensor([20, 20]))[:, :12], whole[:, :12])
    assert whole.shape == (2, 20, encoder.width) == (2, 20, 6)
    assert encoder.streams
    assert not BilstmEncoder(BilstmConfig(layers=1, hidden=4), 5).streams


def test_bilstm_does_not_stream():
    encoder = BilstmEncoder(BilstmConfig(layers=1, hidden=4), 5)
    with pytest.raises(ValueError, match="a Bi-LSTM cannot stream; encoder kind: lstm can"):
        encoder.initial_state(1)
    with pytest.raises(ValueError, match="a Bi-LSTM cannot stream; encoder kind: lstm can"):
        encoder.step(torch.randn(1, 1, 5), ())


@torch.inference_mode()
@pytest.mark.parametrize("kind", STACKS)
def test_lstm_stacks_work_under_autocast(kind):
    model, x, lengths = build("none", kind), torch.randn(2, 20, DIM), torch.tensor([20, 9])
    with torch.autocast("cpu", torch.bfloat16):
        log_probs = model(x, lengths)[0]
    torch.testing.assert_close(log_probs, model(x, lengths)[0], atol=0.05, rtol=0.05)


def test_bilstm_equals_torch_on_packed_sequences():
    torch.manual_seed(0)
    encoder = BilstmEncoder(BilstmConfig(layers=2, hidden=6, dropout=0.0), 5)
    packed = torch.nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True)
    weights = {}
    for layer, (ahead, back) in enumerate(zip(encoder.ahead, encoder.back, strict=True)):
        for name, value in ahead.state_dict().items():
            weights[name.replace("l0", f"l{layer}")] = value
        for name, value in back.state_dict().items():
            weights[name.replace("l0", f"l{layer}_reverse")] = value
    packed.load_state_dict(weights)
    x, lengths = torch.randn(3, 9, 5), torch.tensor([9, 1, 4])
    expected, _ = pad_packed_sequence(
        packed(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0], batch_first=True
    )
    real = frame_mask(lengths, 9)
    torch.testing.assert_close(encoder(x, lengths)[real], expected[real], atol=1e-6, rtol=1e-5)
