"""Softmax attention and its patterns against the formula in float64, pair by pair."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from asr.attention.patterns import Materialised
from asr.attention.rotary import rotate
from asr.attention.softmax import SoftmaxConfig


def explicit(layer, x, sees, topk=None):
    """Softmax over the keys j for which sees(i, j) holds, one query and one head at a time; x (time, dim)."""
    time = len(x)
    q, k, v = layer.project(x).unflatten(-1, (3, layer.heads, -1)).permute(1, 2, 0, 3)
    if layer.rotary:
        q, k = rotate(q), rotate(k)
    rows = []
    for i in range(time):
        keys = [j for j in range(time) if sees(i, j)]
        scores = torch.einsum("hd,hjd->hj", q[:, i], k[:, keys]) / q.shape[-1] ** 0.5
        if topk is not None and topk < len(keys):
            out = scores.argsort(dim=-1, descending=True)[:, topk:]
            scores = scores.scatter(1, out, -torch.inf)
        rows.append(torch.einsum("hj,hjd->hd", scores.softmax(-1), v[:, keys]).flatten())
    return layer.output(torch.stack(rows))


def window(left, right, tokens=0):
    return lambda i, j: i - left <= j <= i + right or i < tokens or j < tokens


def chunks(size, left, ahead):
    return lambda i, j: (i // size - left) * size <= j < (i // size + 1) * size + ahead


def strided(s):
    return lambda i, j: abs(i - j) < s or (i - j) % s == 0


PATTERNS = [
    ({}, lambda i, j: True),
    ({"implementation": "materialised"}, lambda i, j: True),
    ({"window": (0, 0)}, lambda i, j: i == j),
    ({"window": (3, 2)}, window(3, 2)),
    ({"window": (0, 4)}, window(0, 4)),
    ({"window": (100, 100)}, window(100, 100)),
    ({"window": (5, 0), "global_tokens": 1}, window(5, 0, 1)),
    ({"window": (2, 1), "global_tokens": 12}, window(2, 1, 12)),
    ({"window": (2, 1), "global_tokens": 90}, window(2, 1, 90)),
    ({"stride": 1}, lambda i, j: True),
    ({"stride": 5}, strided(5)),
    ({"stride": 64}, strided(64)),
    ({"topk": 3}, lambda i, j: True),
    ({"topk": 90}, lambda i, j: True),
]
CHUNKS = [
    ({"chunk_frames": 5}, chunks(5, 0, 0)),
    ({"chunk_frames": 4, "left_chunks": 2}, chunks(4, 2, 0)),
    ({"chunk_frames": 7, "left_chunks": 1, "lookahead": 3}, chunks(7, 1, 3)),
    ({"chunk_frames": 80}, chunks(80, 0, 0)),
]
CAUSAL = [
    (options | {"causal": True}, lambda i, j, sees=sees: j <= i and sees(i, j))
    for options, sees in PATTERNS
    if options.get("window", (0, 0))[1] == 0
]


def label(value):
    """Of a row's options; a function's text holds its address, which differs between processes."""
    return str(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("options", "sees"), PATTERNS + CHUNKS + CAUSAL, ids=label)
def test_equals_the_formula(options, sees, rotary):
    torch.manual_seed(0)
    layer = SoftmaxConfig(**options).build(12, 2, rotary).double()
    lengths = torch.tensor([47, 20, 1])
    x = torch.randn(3, 47, 12, dtype=torch.float64)
    y = layer(x, lengths)
    for row, n in enumerate(lengths):
        expected = explicit(layer, x[row, :n], sees, options.get("topk"))
        torch.testing.assert_close(y[row, :n], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "sees"), [row for row in PATTERNS + CHUNKS + CAUSAL if "topk" not in row[0]], ids=label
)
def test_a_frame_depends_on_the_frames_its_pattern_names_and_on_no_other(options, sees):
    torch.manual_seed(0)
    layer, time = SoftmaxConfig(**options).build(4, 1).double(), 30
    jacobian = torch.autograd.functional.jacobian(
        lambda x: layer(x, torch.tensor([time]))[0].sum(-1), torch.randn(1, time, 4, dtype=torch.float64)
    )
    seen = jacobian[:, 0].abs().amax(-1) > 0
    assert seen.tolist() == [[bool(sees(i, j)) for j in range(time)] for i in range(time)]
    later = max(j - i for i in range(time) for j in range(time) if sees(i, j))
    if layer.lookahead_frames is not None:
        assert layer.lookahead_frames == later or layer.lookahead_frames >= time
    else:
        assert later > time - 6


def test_topk_keeps_every_key_that_ties_with_the_last():
    """Small integers, so that products are exact and ties are ties."""
    q, k = torch.tensor([[4.0, 0.0]]), torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 5.0], [2.0, -4.0], [2.0, 0.0]])
    weights = Materialised(topk=2).attend(q[None, None], k[None, None], torch.eye(5)[None, None], torch.tensor([5]))
    expected = torch.tensor([3.0, -torch.inf, 2.0, 2.0, 2.0]).mul(4 / 2**0.5).softmax(0)
    torch.testing.assert_close(weights[0, 0, 0], expected)
    assert weights[0, 0, 0, 1] == 0


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("options", [{}, {"left_chunks": 2}])
def test_chunks_stream_in_whole_chunks(options, rotary):
    torch.manual_seed(0)
    layer = SoftmaxConfig(chunk_frames=4, **options).build(12, 2, rotary).double()
    assert layer.streams
    assert (layer.step_frames, layer.lookahead_frames) == (4, 3)
    x = torch.randn(2, 31, 12, dtype=torch.float64)
    expected = layer(x, torch.tensor([31, 31]))
    for pieces in ([4] * 7 + [3], [8, 0, 16, 7], [31]):
        state, out = layer.initial_state(2), []
        for piece in x.split(pieces, dim=1):
            y, state = layer.step(piece, state)
            out.append(y)
        torch.testing.assert_close(torch.cat(out, 1), expected, atol=1e-9, rtol=1e-9)
    with pytest.raises(ValueError, match="whole chunks of 4"):
        layer.step(x[:, :4], state)


def test_a_band_does_not_form_the_matrix_of_frame_pairs():
    """120,000 frames: the N×N mask alone would need 13 GiB."""
    layer = SoftmaxConfig(window=(8, 8), global_tokens=1).build(2, 1)
    with torch.inference_mode():
        assert layer(torch.randn(1, 120_000, 2), torch.tensor([120_000])).isfinite().all()


@pytest.mark.parametrize("time", [1, 15, 40])
@pytest.mark.parametrize(
    "options",
    [
        {"window": (10**9, 10**9)},
        {"window": (10**9, 10**9), "global_tokens": 10**9},
        {"chunk_frames": 10**9, "left_chunks": 3, "lookahead": 1},
        {"chunk_frames": 4, "left_chunks": 10**9, "lookahead": 10**9},
        {"stride": 10**9},
    ],
)
def test_a_pattern_wider_than_the_utterance_is_attention_to_all_of_it_and_costs_no_more(options, time):
    torch.manual_seed(0)
    config = SoftmaxConfig(**options)
    wide, full = config.build(12, 2), SoftmaxConfig().build(12, 2)
    wide.load_state_dict(full.state_dict())
    x, lengths = torch.randn(2, time, 12), torch.tensor([time, 1])
    y, expected = wide(x, lengths), full(x, lengths)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(y[row, :n], expected[row, :n])
    assert config.pair_bytes(2, time) < 1e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": (4, 4), "topk": 3}, "window and topk are different patterns"),
        ({"stride": 4, "chunk_frames": 3}, "stride and chunk_frames are different patterns"),
        ({"window": (4, 4), "implementation": "materialised"}, "leave it out with window"),
        ({"global_tokens": 4}, "global_tokens belongs to window"),
        ({"window": (4, 4), "lookahead": 2}, "lookahead belongs to chunk_frames"),
        ({"left_chunks": 2}, "left_chunks belongs to chunk_frames"),
        ({"window": (4, 2), "causal": True}, r"causal: true needs \[4, 0\]"),
        ({"chunk_frames": 4, "causal": True}, "set window"),
        ({"window": (-1, 0)}, "greater than or equal to 0"),
        ({"window": (10**9, 0), "causal": True}, "window makes a stream remember 1000000000 frames, more than 65536"),
        ({"chunk_frames": 512, "left_chunks": 129}, "chunk_frames makes a stream remember 66048 frames"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_recipe(options, message):
    with pytest.raises(ValidationError, match=message):
        SoftmaxConfig(**options)
