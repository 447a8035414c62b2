"""Every key of mixers, encoders and front-ends changes what is computed, or how, or is refused: none is a placebo."""

from __future__ import annotations

import itertools
from typing import Literal, get_args, get_origin

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asr.attention.config import AttentionConfig
from asr.attention.feature_maps import FeatureMapConfig
from asr.attention.linear import LinearConfig
from asr.encoder.bilstm import BilstmEncoder
from asr.encoder.config import BilstmConfig, EncoderConfig, FrontendConfig, TransformerConfig
from asr.encoder.frontend import build_frontend
from asr.encoder.stack import TransformerEncoder
from asr.recipe_schema import alternatives, kinds, sections

DIM, HEADS, TIME = 12, 2, 16
SMALL = {"dim": DIM, "heads": HEADS, "feedforward": 8, "layers": 2}
# Another value for every key that is neither a choice nor a switch: where the default is null, also a mode of its own.
OTHER = {
    "window": (3, 0), "global_tokens": 2, "stride": 3, "topk": 2, "chunk_frames": 4, "left_chunks": 2, "lookahead": 1,
    "rounds": 2, "bucket_size": 5, "seed": 3, "chunk": 5, "eps": 0.5, "decay": [0.5, 0.9], "group": None,
    "expansion": 3, "width": 6, "expand_v": 2, "expand_k": 1.0, "rank": 3, "tau": 2.0, "hidden": 5, "state": 6,
    "dt_min": 0.05, "dt_max": 1.0, "convolution": 5, "size": 9, "redraw": 1,
    "layers": 3, "dim": 16, "heads": 3, "feedforward": 10, "dropout": 0.5, "layer_drop": 0.3, "stochastic_depth": 0.5,
    "attention": {"kind": "lsh"}, "factor": 2, "channels": 3, "feature_map": {"kind": "favor", "size": 10},
}  # fmt: skip
PATTERNS = ("window", "chunk_frames", "stride", "topk")
MODES = (*PATTERNS, "feature_map", "group", "decay")


class Trace(TorchDispatchMode):
    """What runs: the operations, the shapes they get and give, and their numbers."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        shapes = [tuple(t.shape) if isinstance(t, torch.Tensor) else t for t in (*args, out)]
        self.seen.append((str(func), repr([s for s in shapes if isinstance(s, tuple | int | float)])))
        return out


def numbers(module, *inputs):
    """What a module gives: its weights, results in evaluation and training, and the gradients' sum."""
    torch.manual_seed(1)
    found = [t for t in module.state_dict().values() if isinstance(t, torch.Tensor)]
    for train in (False, True, True):
        y = module.train(train)(*inputs)
        found.append(y[0] if isinstance(y, tuple) else y)
    found[-1].square().sum().backward()
    learned = {name: None if p.grad is None else p.grad.sum().item() for name, p in module.named_parameters()}
    return repr([(tuple(t.shape), t.detach().double().sum().item()) for t in found]), learned


def work(module, *inputs):
    """The operations that it takes to get there."""
    with Trace() as trace:
        numbers(module, *inputs)
    return trace.seen


def values_of(config, key):
    """Other values of a key: all choices, or the one in OTHER."""
    (annotation, *_) = [a for a in alternatives(config.model_fields[key].annotation) if a is not type(None)]
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if key == "feature_map":
        return [{"kind": kind} for kind in FEATURE_MAPS] + [OTHER[key]]
    return [OTHER[key]]


MAPS = sections(FeatureMapConfig)
FEATURE_MAPS = [kind for section in MAPS for kind in kinds(section)]
CLASSES = [*sections(AttentionConfig), *MAPS, *sections(FrontendConfig), *sections(EncoderConfig)]


def build(config):
    torch.manual_seed(0)
    x, lengths = torch.randn(2, TIME, DIM), torch.tensor([TIME, TIME - 5])
    if isinstance(config, TransformerConfig):
        return TransformerEncoder(config), torch.randn(2, TIME, config.dim), lengths
    if isinstance(config, BilstmConfig):
        return BilstmEncoder(config, DIM), x, lengths
    if type(config) in sections(FrontendConfig):
        return build_frontend(config, DIM, 6), x, lengths
    if type(config) in MAPS:
        config = LinearConfig(feature_map=config, normaliser="output")
    config.check(DIM, HEADS, False)
    return config.build(DIM, HEADS), x, lengths


def make(config, given):
    small = SMALL if config is TransformerConfig else {"hidden": 4, "layers": 2} if config is BilstmConfig else {}
    return config.model_validate({**small, **given, **({"kind": kinds(config)[0]} if "kind" not in given else {})})


def modes(config):
    """What a key may depend on: every combination of choices and switches, and of patterns that are off by default."""
    keys = [key for key in config.model_fields if key in MODES or not is_number(config, key)]
    values = {key: [{key: value} for value in values_of(config, key)] for key in keys}
    if config is TransformerConfig:  # its combinations are many: one choice apart from the defaults
        return [{}, *(one for some in values.values() for one in some), {"block": "conformer", "convolution": 3}]
    patterns = [{}, *(one for key in PATTERNS for one in values.pop(key, []))]  # one at a time
    for key in [key for key in MODES if key in values]:
        values[key].append({})
    return [{k: v for one in parts for k, v in one.items()} for parts in itertools.product(*values.values(), patterns)]


def is_number(config, key):
    annotation = next(a for a in alternatives(config.model_fields[key].annotation) if a is not type(None))
    return annotation is not bool and get_origin(annotation) is not Literal


@pytest.mark.parametrize("config", CLASSES, ids=lambda config: config.__name__.removesuffix("Config"))
def test_every_key_has_an_effect_or_is_refused(config, monkeypatch):
    monkeypatch.setenv("ASR_KERNELS", "reference")  # compiled, one operation does it all
    made, works = {}, {}

    def found(given):
        """(config, what it gives), or None where it is refused."""
        try:
            one = make(config, given)
            if (name := one.model_dump_json()) not in made:
                made[name] = (one, numbers(*build(one)))
            return made[name]
        except ValueError:
            return None

    def work_of(one):
        if (name := one.model_dump_json()) not in works:
            works[name] = work(*build(one))
        return works[name]

    placebos, effective, seen = [], set(), set()
    for mode in modes(config):
        if (base := found(mode)) is None:
            continue
        for key in config.model_fields:
            for value in values_of(config, key):
                other = found({**mode, key: value})
                pair = {base[0].model_dump_json(), other[0].model_dump_json()} if other else set()
                if len(pair) < 2 or frozenset(pair) in seen:
                    continue
                seen.add(frozenset(pair))
                if other[1] == base[1] and work_of(other[0]) == work_of(base[0]):
                    placebos.append(f"{mode}: {key}: {value}")
                effective.add(key)
    assert placebos == []
    assert effective == set(config.model_fields) - ({"kind"} if len(kinds(config)) == 1 else set())
