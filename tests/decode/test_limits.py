from __future__ import annotations

from pathlib import Path

import pytest

from asr.attention.gau import GauConfig
from asr.attention.linear import LinearConfig
from asr.attention.lsh import LshConfig
from asr.attention.softmax import SoftmaxConfig
from asr.data.config import DataConfig
from asr.decode.limits import QUADRATIC_BUDGET, default_max_seconds
from asr.encoder.config import (
    BilstmConfig,
    LayerConfig,
    ModelConfig,
    NoFrontendConfig,
    StackFrontendConfig,
    TransformerConfig,
)
from asr.recipe import Recipe


def limit(attention=None, factor=1, heads=6):
    encoder = BilstmConfig() if attention is None else TransformerConfig(heads=heads, attention=attention)
    frontend = StackFrontendConfig(factor=factor) if factor > 1 else NoFrontendConfig()
    data = DataConfig(train=Path("train.jsonl"), dev=Path("dev.jsonl"))
    return default_max_seconds(Recipe(data=data, model=ModelConfig(frontend=frontend, encoder=encoder)))


@pytest.mark.parametrize("attention", [None, SoftmaxConfig(), LinearConfig(), LshConfig()])
def test_mixers_without_a_matrix_of_frame_pairs_take_ten_minutes(attention):
    assert limit(attention) == 600.0


def test_H7_a_materialised_matrix_shortens_the_limit_to_its_memory():
    assert limit(SoftmaxConfig(implementation="materialised")) == 54
    frames = limit(SoftmaxConfig(implementation="materialised"), factor=4, heads=4) * 25
    assert QUADRATIC_BUDGET * 0.95 < frames**2 * 12 * 4 <= QUADRATIC_BUDGET


def test_H7_patterns_are_limited_by_the_pairs_they_keep():
    assert limit(SoftmaxConfig(causal=True)) == limit(SoftmaxConfig(window=(64, 64), global_tokens=8)) == 600
    assert limit(SoftmaxConfig(chunk_frames=16, left_chunks=8, lookahead=8)) == 600
    assert limit(SoftmaxConfig(topk=8)) == 54
    assert limit(GauConfig(group=None)) < limit(GauConfig()) == 600
    assert 54 < limit(SoftmaxConfig(stride=4)) < limit(SoftmaxConfig(stride=64)) < 600
    assert limit(SoftmaxConfig(stride=2000)) < limit(SoftmaxConfig(stride=64))
    assert limit(SoftmaxConfig(window=(40_000, 40_000))) < 600


def test_H7_the_costliest_layer_of_a_hybrid_sets_the_limit():
    data = DataConfig(train=Path("train.jsonl"), dev=Path("dev.jsonl"))
    mixers = [LinearConfig(), SoftmaxConfig(implementation="materialised"), SoftmaxConfig()]
    encoder = TransformerConfig(layers=[LayerConfig(attention=mixer) for mixer in mixers])
    assert default_max_seconds(Recipe(data=data, model=ModelConfig(encoder=encoder))) == 54
