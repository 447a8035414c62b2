"""The suite every mixer goes through. A new mixer is one more row in MIXERS."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from asr.attention.decay import DecayConfig
from asr.attention.feature_maps import FavorConfig, FixedMapConfig, HedgehogConfig
from asr.attention.gated import GatedConfig
from asr.attention.gau import GauConfig
from asr.attention.lightning import LightningConfig
from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.lstm import LstmConfig
from asr.attention.retention import RetentionConfig
from asr.attention.softmax import SoftmaxConfig
from asr.attention.ssm import SsmConfig
from asr.attention.summary import SummaryConfig

MIXERS = {
    "softmax": SoftmaxConfig(),
    "softmax-materialised": SoftmaxConfig(implementation="materialised"),
    "softmax-causal": SoftmaxConfig(causal=True),
    "softmax-materialised-causal": SoftmaxConfig(implementation="materialised", causal=True),
    "softmax-window": SoftmaxConfig(window=(6, 3)),
    "softmax-window-global": SoftmaxConfig(window=(9, 0), global_tokens=7),
    "softmax-window-causal": SoftmaxConfig(window=(9, 0), causal=True),
    "softmax-window-global-causal": SoftmaxConfig(window=(5, 0), global_tokens=15, causal=True),
    "softmax-chunks": SoftmaxConfig(chunk_frames=8, left_chunks=2),
    "softmax-chunks-lookahead": SoftmaxConfig(chunk_frames=8, lookahead=3),
    "softmax-stride": SoftmaxConfig(stride=6),
    "softmax-stride-causal": SoftmaxConfig(stride=6, causal=True),
    "softmax-topk": SoftmaxConfig(topk=4),
    "softmax-topk-causal": SoftmaxConfig(topk=4, causal=True),
    "gau": GauConfig(group=None, width=8),
    "gau-causal": GauConfig(group=None, width=8, causal=True),
    "gau-mixed": GauConfig(group=8, width=8),
    "gau-mixed-causal": GauConfig(group=8, width=8, causal=True),
    "softmax-shared": SoftmaxConfig(shared_qk=True),
    "softmax-shared-causal": SoftmaxConfig(shared_qk=True, causal=True),
    "linear": LinearConfig(),
    "linear-causal": LinearConfig(causal=True, chunk=7),
    **{
        f"linear-{kind}{'-causal' * causal}": LinearConfig(
            causal=causal, chunk=7 if causal else 64, feature_map=feature_map
        )
        for kind, feature_map in {
            "exp": FixedMapConfig(kind="exp"),
            "square": FixedMapConfig(kind="square"),
            "favor": FavorConfig(size=20),
            "hedgehog": HedgehogConfig(),
        }.items()
        for causal in (False, True)
    },
    **{
        f"linear-{kind}-output{'-causal' * causal}": LinearConfig(
            causal=causal, chunk=7 if causal else 64, feature_map=FixedMapConfig(kind=kind), normaliser="output"
        )
        for kind, causal in (("identity", False), ("identity", True), ("exp", False), ("exp", True))
    },
    "lightning": LightningConfig(),
    "lightning-causal": LightningConfig(causal=True, chunk=7),
    "lsh": LshConfig(bucket_size=8),
    "lsh-1": LshConfig(bucket_size=8, rounds=1),
    "lsh-causal": LshConfig(bucket_size=8, causal=True),
    "lsh-keys": LshConfig(bucket_size=8, shared_qk=False),
    "summary": SummaryConfig(),
    "summary-causal": SummaryConfig(causal=True),
    "lstm": LstmConfig(hidden=10),
    "lstm-concat": LstmConfig(combine="concat"),
    "lstm-causal": LstmConfig(causal=True),
    "decay": DecayConfig(combine="concat", feature_map="square"),
    "decay-causal": DecayConfig(causal=True, decay=[0.5, 0.9, 0.99], learned=False, chunk=7),
    "retention": RetentionConfig(expand_v=2),
    "retention-causal": RetentionConfig(causal=True, chunk=7),
    "gated": GatedConfig(),
    "gated-causal": GatedConfig(causal=True, expand_k=1.0, tau=1.0, chunk=8),
    "ssm": SsmConfig(),
    "ssm-causal": SsmConfig(causal=True),
    "ssm-bilinear-causal": SsmConfig(causal=True, discretisation="bilinear", init="inv", convolution=0),
    "ssm-selective": SsmConfig(selective=True, state=5, combine="concat"),
    "ssm-selective-causal": SsmConfig(selective=True, state=5, causal=True),
}
DIM, HEADS = 24, 3
ROWS = [(name, rotary) for name, config in MIXERS.items() for rotary in (False, True) if config.turns or not rotary]
CAUSAL = [row for row in ROWS if MIXERS[row[0]].causal]
STREAMING = [row for row in CAUSAL if MIXERS[row[0]].build(DIM, HEADS).streams]


def build(row, **changes):
    """The mixer of a row, always with the same weights; `changes` go to its config."""
    name, rotary = row
    torch.manual_seed(0)
    mixer = MIXERS[name].model_copy(update=changes).build(DIM, HEADS, rotary).eval()
    assert mixer.causal == MIXERS[name].causal
    return mixer


def label(row):
    return row[0] + ("-rotary" if row[1] else "")


@pytest.fixture(params=ROWS, ids=label)
def mixer(request):
    return build(request.param)


@pytest.mark.parametrize("fill", [0.0, 1e4, float("nan")])
def test_H1_padding_changes_nothing(mixer, fill):
    lengths = [37, 64, 5, 1, 20]
    rows = [torch.randn(n, 24) for n in lengths]
    alone = [mixer(r[None], torch.tensor([len(r)]))[0] for r in rows]
    batch = torch.full((5, 71, 24), fill)
    for i, r in enumerate(rows):
        batch[i, : len(r)] = r
    together = mixer(batch, torch.tensor(lengths))
    for i, n in enumerate(lengths):
        torch.testing.assert_close(together[i, :n], alone[i], atol=1e-5, rtol=1e-4)


def test_H1_padding_gets_no_gradient_and_gives_none(mixer):
    x = torch.randn(2, 20, 24, requires_grad=True)
    y = mixer(x, torch.tensor([20, 9]))
    y[1, :9].square().sum().backward()
    assert x.grad[1, 9:].abs().max() == 0
    assert x.grad[0].abs().max() == 0
    assert x.grad[1, :9].abs().min() > 0


def test_empty_rows_empty_time_and_empty_batch(mixer):
    y = mixer(torch.randn(4, 6, 24), torch.tensor([5, 0, 3, 0]))
    assert torch.isfinite(y).all()
    assert mixer(torch.randn(2, 0, 24), torch.tensor([0, 0])).shape == (2, 0, 24)
    assert mixer(torch.randn(0, 6, 24), torch.tensor([], dtype=torch.long)).shape == (0, 6, 24)


def test_gradients(mixer):
    mixer = mixer.double()
    x = torch.randn(2, 11, 24, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([11, 6])

    def loss(x):
        y = mixer(x, lengths)
        return y[1, :6].sum() + y[0].sin().sum()

    assert torch.autograd.gradcheck(loss, x, fast_mode=True)  # along random directions: entry by entry takes minutes


def test_every_parameter_has_a_gradient(mixer):
    mixer(torch.randn(2, 20, 24), torch.tensor([20, 9])).square().sum().backward()
    assert [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_same_answer_twice_and_after_reload(mixer):
    x, lengths = torch.randn(2, 30, 24), torch.tensor([30, 17])
    first = mixer(x, lengths)
    assert torch.equal(first, mixer(x, lengths))
    torch.manual_seed(5)
    assert torch.equal(first, mixer(x, lengths)), "evaluation must not depend on the global generator"


def test_extreme_inputs_stay_finite(mixer):
    for scale in (1e-30, 1e4):
        x = (torch.randn(2, 30, 24) * scale).requires_grad_()
        y = mixer(x, torch.tensor([30, 17]))
        y.sum().backward()
        assert torch.isfinite(y).all()
        assert torch.isfinite(x.grad).all()


def test_autocast_keeps_the_answer(mixer):
    x, lengths = torch.randn(2, 30, 24), torch.tensor([30, 17])
    exact = mixer(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, lengths)
    topk = getattr(getattr(mixer, "pattern", None), "topk", 0)
    if "Lsh" not in type(mixer).__name__ and not topk:  # these may choose other frames after rounding
        far = (y.float() - exact).abs() > 0.05 + 0.05 * exact.abs()
        assert far.float().mean() < 0.01  # a norm magnifies the rounding of a sum that nearly cancels
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("row", CAUSAL, ids=label)
def test_causal_mixers_do_not_see_the_future(row):
    mixer = build(row)
    x = torch.randn(1, 40, 24)
    # Hashing sorts, so what a frame meets may move with later frames; what it sees is still only the past.
    if row[0].startswith("lsh"):
        x.requires_grad_()
        mixer(x, torch.tensor([40]))[0, 20].sum().backward()
        assert x.grad[0, 21:].abs().max() == 0
        assert x.grad[0, :20].abs().max() > 0
        return
    changed = x.clone()
    changed[0, 25:] += 1
    a, b = mixer(x, torch.tensor([40])), mixer(changed, torch.tensor([40]))
    if row[0] in ("ssm-causal", "ssm-bilinear-causal"):  # what comes through the FFT from later frames is rounding
        torch.testing.assert_close(a[0, :25], b[0, :25], atol=1e-6, rtol=0)
    else:
        assert torch.equal(a[0, :25], b[0, :25])
    assert not torch.equal(a[0, 25:], b[0, 25:])


def numbers(state):
    """All tensors of a state, one after the other."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [tensor for part in state for tensor in numbers(part)] if isinstance(state, tuple) else []


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("row", STREAMING, ids=label)
def test_parallel_chunkwise_and_recurrent_forms_agree(row, dtype, tolerance):
    """The same result and the same state at the end, from a state in mid-utterance, whatever the pieces and chunks."""
    mixer = build(row).to(dtype)
    x, before = torch.randn(2, 33, DIM, dtype=dtype), torch.randn(2, 12, DIM, dtype=dtype)
    start = mixer.step(before, mixer.initial_state(2))[1]
    expected, final = mixer.step(x, start)
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    close(mixer(torch.cat([before, x], 1), torch.tensor([45, 45]))[:, 12:], expected)
    if "chunk" in type(MIXERS[row[0]]).model_fields:
        for chunk in (1, 7, 32, 33, 64):
            y, end = build(row, chunk=chunk).to(dtype).step(x, start)
            close(y, expected)
            for a, b in zip(numbers(end), numbers(final), strict=True):
                close(a, b)
    for pieces in ([1] * 33, [5, 0, 20, 8]):
        state, out = start, []
        for piece in x.split(pieces, dim=1):
            y, state = mixer.step(piece, state)
            assert [t.shape for t in numbers(state)] == [t.shape for t in numbers(start)], "the state must not grow"
            out.append(y)
        close(torch.cat(out, 1), expected)
        for a, b in zip(numbers(state), numbers(final), strict=True):
            close(a, b)


@pytest.mark.parametrize("row", STREAMING, ids=label)
@torch.inference_mode()
def test_a_state_does_not_hold_on_to_the_piece_it_came_from(row):
    mixer = build(row)

    def held(pieces):
        _, state = mixer.step(torch.randn(2, pieces * mixer.step_frames, DIM), mixer.initial_state(2))
        return sum(t.untyped_storage().nbytes() for t in numbers(state))

    assert held(40) == held(5), "a view keeps the memory of all that it was cut from: copy it"


@pytest.mark.parametrize("row", [row for row in ROWS if not build(row).streams], ids=label)
def test_what_cannot_stream_says_so(row):
    with pytest.raises(ValueError, match="cannot stream"):
        build(row).initial_state(1)
    with pytest.raises(ValueError, match="cannot stream"):
        build(row).step(torch.randn(1, 1, DIM), None)


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_weights_reload_into_the_same_mixer(row):
    first, x, lengths = build(row), torch.randn(2, 30, DIM), torch.tensor([30, 17])
    torch.manual_seed(7)
    second = MIXERS[row[0]].build(DIM, HEADS, row[1]).eval()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, lengths), second(x, lengths))
