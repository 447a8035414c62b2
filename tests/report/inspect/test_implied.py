"""Attention maps that mixers imply: exact ones explain the layer's own result, Jacobians those of autograd."""

import pytest
import torch
from pydantic import TypeAdapter

from asr.attention.config import AttentionConfig
from asr.encoder.config import ModelConfig
from asr.encoder.model import CtcModel
from asr.report.inspect import implied
from asr.report.inspect.implied import jacobian_map, queries_keys, softmax_weights, value_map
from asr.report.inspect.layers import Layer, layers_of, run_through
from asr.report.inspect.maps import MAX_ROWS, ImpliedMap, implied_map, map_numbers, summarise_maps

DIM, HEADS, TIME = 16, 2, 21
# Its config, and the module that is the first to see o = A v.
EXACT = [
    ({"kind": "softmax"}, "output"),
    ({"kind": "softmax", "implementation": "materialised", "causal": True}, "output"),
    ({"kind": "softmax", "shared_qk": True}, "output"),
    ({"kind": "softmax", "window": (3, 2), "global_tokens": 1}, "output"),
    ({"kind": "softmax", "stride": 4}, "output"),
    ({"kind": "softmax", "topk": 3}, "output"),
    ({"kind": "softmax", "chunk_frames": 4, "left_chunks": 1}, "output"),
    ({"kind": "lsh", "bucket_size": 4}, "output"),
    ({"kind": "lsh", "bucket_size": 4, "causal": True}, "output"),
    ({"kind": "lsh", "bucket_size": 4, "shared_qk": False}, "output"),
    ({"kind": "linear"}, "output"),
    ({"kind": "linear", "causal": True}, "output"),
    ({"kind": "linear", "feature_map": {"kind": "favor"}}, "output"),
    ({"kind": "linear", "feature_map": {"kind": "exp"}, "causal": True}, "output"),
    ({"kind": "linear", "feature_map": {"kind": "identity"}, "normaliser": "output"}, "norm"),
    ({"kind": "decay", "causal": True}, "output"),
    ({"kind": "lightning", "causal": True}, "norm"),
    ({"kind": "retention", "causal": True, "expand_v": 2}, "out"),
    ({"kind": "gated", "causal": True}, "out"),
]
OTHER = [
    {"kind": "gau", "group": 4},
    {"kind": "summary"},
    {"kind": "lstm", "causal": True},
    {"kind": "ssm", "causal": True},
    {"kind": "ssm", "selective": True, "causal": True},
]


def layer_of(config, rotary=False):
    torch.manual_seed(0)
    mixer = TypeAdapter(AttentionConfig).validate_python(config).build(DIM, HEADS, rotary)
    return Layer(1, mixer.eval())


def model_of(**encoder):
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"frontend": {"kind": "stack", "factor": 2}, "encoder": encoder})
    return CtcModel(config, feature_dim=5, tokens=3).eval().requires_grad_(False)


def frames(time=TIME):
    return torch.randn(1, time, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("config", "reader"), EXACT, ids=str)
def test_exact_map_times_values_is_what_the_layer_computes(config, reader, rotary):
    layer, x = layer_of(config, rotary), frames()
    seen = []
    hook = getattr(layer.module, reader).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    layer(x)
    hook.remove()
    a, qk = value_map(layer, x), queries_keys(layer, x)
    assert a.shape == (HEADS, TIME, TIME)
    o = seen[0].reshape(TIME, HEADS, -1).transpose(0, 1)
    torch.testing.assert_close(a @ qk.v, o, atol=2e-5, rtol=2e-5)
    if layer.causal:
        assert not a.triu(1).any()


@pytest.mark.parametrize("config", [{}, {"causal": True}, {"shared_qk": True}, {"shared_qk": True, "causal": True}])
@pytest.mark.parametrize("rotary", [False, True])
def test_softmax_is_at_no_distance_from_itself(config, rotary):
    layer, x = layer_of({"kind": "softmax", **config}, rotary), frames()
    torch.testing.assert_close(softmax_weights(queries_keys(layer, x), layer.causal), value_map(layer, x))
    assert map_numbers(implied_map(layer, x)).distance.max() < 1e-5


def test_linear_attention_by_its_equation():
    layer, x = layer_of({"kind": "linear"}), frames()
    q, k, _ = layer.module.project(x)[0].unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)  # (3, heads, time, D)
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
    torch.testing.assert_close(value_map(layer, x), weights / weights.sum(-1, keepdim=True), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("config", OTHER, ids=str)
def test_jacobian_is_that_of_autograd(config, monkeypatch):
    monkeypatch.setattr(implied, "PROBES", 800)
    layer, x = layer_of(config), frames(6)
    assert value_map(layer, x) is None
    found = jacobian_map(layer, x, torch.tensor([0, 2, 5]))[0]
    exact = torch.autograd.functional.jacobian(lambda x: layer(x)[0, [0, 2, 5]], x)[:, :, 0].square().sum((1, 3)).sqrt()
    torch.testing.assert_close(found, exact, atol=0.01 * float(exact.max()), rtol=0.12)


@pytest.mark.parametrize("attention", ["retention", "lstm", "linear"])
def test_directions_are_layers_of_their_own_in_the_order_of_time(attention):
    model = model_of(kind="transformer", layers=2, dim=16, heads=2, feedforward=16, attention={"kind": attention})
    layers = layers_of(model)
    both = attention != "linear"
    assert [layer.label for layer in layers] == (["1 →", "1 ←", "2 →", "2 ←"] if both else ["1", "2"])
    _, inputs = run_through(model, layers, torch.randn(22, 5))
    for layer, x in zip(layers, inputs, strict=True):
        shares = implied_map(layer, x).shares
        assert shares.shape[1:] == (11, 11)
        assert bool(shares.triu(1).any()) == (layer.direction != "forward")
        assert bool(shares.tril(-1).any()) == (layer.direction != "backward")


@pytest.mark.parametrize("kind", ["bilstm", "lstm"])
def test_recurrent_encoders(kind):
    model = model_of(kind=kind, layers=2, hidden=8)
    layers = layers_of(model)
    log_probs, inputs = run_through(model, layers, torch.randn(7, 5))
    assert len(layers) == (4 if kind == "bilstm" else 2)
    assert log_probs.shape == (4, 3)
    one = implied_map(layers[-1], inputs[-1])
    assert one.method == "jacobian"
    torch.testing.assert_close(one.shares.sum(-1), torch.ones(1, 4))
    assert not (one.shares.tril(-1) if kind == "bilstm" else one.shares.triu(1)).any()


def test_of_a_long_utterance_some_rows_are_taken():
    layer = layer_of({"kind": "lstm", "causal": True})
    layer.module.requires_grad_(False)
    one = implied_map(layer, frames(MAX_ROWS + 72))
    assert one.shares.shape == (1, MAX_ROWS, MAX_ROWS + 72)
    assert one.rows[[0, -1]].tolist() == [0, MAX_ROWS + 71]
    backward = implied_map(Layer(1, layer.module, "backward"), frames(MAX_ROWS + 72))
    assert not torch.where(torch.arange(MAX_ROWS + 72) < backward.rows[:, None], backward.shares, 0).any()


def test_numbers_of_a_map_made_by_hand():
    shares = torch.tensor([[[0.25, 0.25, 0.25, 0.25], [0, 0.0, 0, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5]]])
    softmax = torch.eye(4)[None]
    numbers = map_numbers(ImpliedMap("values", shares, torch.arange(4), softmax))
    torch.testing.assert_close(numbers.distance, torch.tensor([[0.75, torch.nan, 0, 0.5]]), equal_nan=True)
    torch.testing.assert_close(numbers.frames, torch.tensor([[4.0, torch.nan, 1, 2]]), equal_nan=True)
    torch.testing.assert_close(numbers.lag, torch.tensor([[1.5, torch.nan, 0, 1.5]]), equal_nan=True)
    summary = summarise_maps([numbers, numbers], "values", frame_ms=40.0)
    assert summary["lag_ms"] == [pytest.approx(40.0)]
    assert summary["dead_share"] == [0.25]


def test_a_dead_layer_of_relu_features_says_so():
    layer = layer_of({"kind": "linear", "feature_map": {"kind": "relu"}})
    with torch.no_grad():
        layer.module.project.weight.zero_()
        layer.module.project.bias.fill_(-1)
    numbers = map_numbers(implied_map(layer, frames()))
    assert summarise_maps([numbers], "values", 10.0)["dead_share"] == [1.0, 1.0]
