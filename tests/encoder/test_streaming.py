"""Blocks and stacks: the Conformer's order, causal convolutions, and streaming that equals the whole utterance."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from asr.attention.config import AttentionConfig
from asr.attention.linear import LinearConfig
from asr.attention.softmax import SoftmaxConfig
from asr.encoder.block import Block
from asr.encoder.config import LayerConfig, TransformerConfig
from asr.encoder.convolution import GatedConvolution
from asr.encoder.stack import TransformerEncoder
from asr.recipe_schema import sections

SIZES = {"dim": 12, "heads": 2, "feedforward": 20, "dropout": 0.0}
BLOCKS = [
    {"block": block, "norm": norm, "positions": positions, "convolution": kernel}
    for block, norm, positions, kernel in itertools.product(
        ("transformer", "macaron", "conformer"), ("pre", "post"), ("sinusoidal", "rotary"), (0, 5)
    )
    if block != "conformer" or (norm, kernel) == ("pre", 5)
]


def build(mixers, **more):
    torch.manual_seed(0)
    layers = [LayerConfig(attention=mixer) for mixer in mixers]
    return TransformerEncoder(TransformerConfig(layers=layers, **SIZES, **more)).double().eval()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join(map(str, block.values())))
@torch.inference_mode()
def test_pieces_give_the_numbers_of_the_whole(block):
    encoder = build([LinearConfig(causal=True), LinearConfig(causal=True, chunk=3)], **block)
    assert encoder.streams
    x = torch.randn(2, 23, 12, dtype=torch.float64)
    whole = encoder(x, torch.tensor([23, 23]))
    for sizes in ([1] * 23, [2, 0, 3, 7, 11]):
        state, pieces = encoder.initial_state(2), []
        for piece in x.split(sizes, dim=1):
            y, state = encoder.step(piece, state)
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-10, rtol=0)
        assert state.time == 23


STREAMING = [
    mixer
    for mixer in [kind(causal=True) for kind in sections(AttentionConfig)] + [SoftmaxConfig(causal=True, window=(4, 0))]
    if mixer.build(SIZES["dim"], SIZES["heads"]).streams
]


@pytest.mark.parametrize("mixer", STREAMING, ids=lambda mixer: mixer.kind)
@torch.inference_mode()
def test_every_mixer_that_streams_does_so_in_a_stack(mixer):
    encoder = build([mixer, mixer], block="conformer", convolution=3)
    assert encoder.streams
    x = torch.randn(2, 17, 12, dtype=torch.float64)
    state, pieces = encoder.initial_state(2), []
    for piece in x.split([encoder.step_frames, 0, 16 - encoder.step_frames, 1], dim=1):
        y, state = encoder.step(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), encoder(x, torch.tensor([17, 17])), atol=1e-9, rtol=0)


@torch.inference_mode()
def test_a_stack_of_unlike_mixers_streams_in_pieces_that_suit_them_all():
    chunks = [SoftmaxConfig(chunk_frames=n, left_chunks=1) for n in (2, 3)]
    encoder = build([LinearConfig(causal=True), *chunks, SoftmaxConfig(causal=True, window=(4, 0))], convolution=3)
    assert (encoder.causal, encoder.streams, encoder.step_frames) == (False, True, 6)
    x = torch.randn(1, 21, 12, dtype=torch.float64)
    state, pieces = encoder.initial_state(1), []
    for piece in x.split([6, 12, 3], dim=1):
        y, state = encoder.step(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), encoder(x, torch.tensor([21])), atol=1e-10, rtol=0)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join(map(str, block.values())))
@torch.inference_mode()
def test_a_causal_stack_does_not_see_the_future(block):
    encoder = build([LinearConfig(causal=True), SoftmaxConfig(causal=True)], **block)
    assert encoder.causal
    x = torch.randn(1, 20, 12, dtype=torch.float64)
    changed = x.clone()
    changed[:, 11:] = torch.randn(1, 9, 12, dtype=torch.float64)  # adding 1 to all, a norm would take off again
    before, after = (encoder(t, torch.tensor([20])) for t in (x, changed))
    torch.testing.assert_close(before[:, :11], after[:, :11], atol=1e-12, rtol=0)
    assert (before[:, 11:] - after[:, 11:]).abs().min() > 0


def test_one_mixer_that_sees_ahead_is_enough():
    mixers = [LinearConfig(causal=True), LinearConfig()]
    encoder = build(mixers, convolution=5)
    assert not encoder.causal
    assert not encoder.streams
    assert not encoder.blocks[0].causal, "its convolution sees two frames ahead"
    assert build(mixers).blocks[0].causal
    with pytest.raises(ValueError, match="cannot stream"):
        encoder.initial_state(1)
    with pytest.raises(ValueError, match="cannot stream"):
        build([SoftmaxConfig(causal=True)]).initial_state(1)


@torch.inference_mode()
def test_a_convolution_remembers_no_more_than_its_kernel():
    layer = GatedConvolution(4, 5, causal=True)
    for frames in (1, 100, 2, 0):
        _, state = layer.step(torch.randn(2, frames, 4), layer.initial_state(2))
        assert state.shape == (2, 4, 4)
        assert state.untyped_storage().nbytes() == state.numel() * 4, "and holds on to nothing else"


@torch.inference_mode()
def test_a_convolution_sees_as_many_frames_as_its_kernel():
    for causal, seen in ((False, range(8, 13)), (True, range(10, 15))):
        layer = GatedConvolution(4, 5, causal).double()
        x = torch.randn(1, 20, 4, dtype=torch.float64)
        changed = x.clone()
        changed[:, 10] += 1
        moved = (layer(x, torch.tensor([20])) - layer(changed, torch.tensor([20]))).abs().amax((0, 2)) > 0
        assert moved.nonzero().flatten().tolist() == list(seen)


@torch.inference_mode()
def test_a_causal_convolution_is_a_centred_one_that_is_late():
    centred, causal = GatedConvolution(4, 5), GatedConvolution(4, 5, causal=True)
    causal.load_state_dict(centred.state_dict())
    x = torch.randn(1, 20, 4)
    y, late = (layer(x, torch.tensor([20])) for layer in (centred, causal))
    torch.testing.assert_close(late[:, 2:], y[:, :-2], atol=1e-6, rtol=1e-5)


@torch.inference_mode()
def test_the_blocks_follow_their_equations():
    x, lengths = torch.randn(2, 9, 12), torch.tensor([9, 6])

    def block(**more):
        torch.manual_seed(0)
        return Block(TransformerConfig(**SIZES, **more), SoftmaxConfig().build(12, 2)).eval()

    close = partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)
    b = block(block="conformer", convolution=3)
    first, mixing, convolution, second = b.norms
    y = x + 0.5 * b.first(first(x))
    y = y + b.mixer(mixing(y), lengths)
    y = y + b.convolution(convolution(y), lengths)
    y = y + 0.5 * b.feedforward(second(y))
    close(b(x, lengths), b.last(y))
    b = block(block="macaron", norm="post")
    first, mixing, second = b.norms
    y = first(x + 0.5 * b.first(x))
    y = mixing(y + b.mixer(y, lengths))
    close(b(x, lengths), second(y + 0.5 * b.feedforward(y)))
    b = block()
    y = x + b.mixer(b.norms[0](x), lengths)
    close(b(x, lengths), y + b.feedforward(b.norms[1](y)))
