"""Bidirectional linear attention: the compiled op against its definition in float64, and what every op must keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import library

from asr.kernels import FEATURE_MAPS, linear_attention, rotary_table
from asr.kernels.linear import reference

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [  # batch, time, heads, dim, width
    (2, 1, 1, 1, 1),
    (3, 31, 2, 6, 7),
    (2, 32, 3, 32, 32),
    (2, 33, 2, 10, 5),
    (1, 511, 1, 16, 24),
    (2, 513, 2, 8, 64),
    (1, 1100, 1, 64, 64),
    (1, 40, 1, 256, 100),
    (2, 0, 2, 4, 4),
    (0, 5, 2, 4, 4),
]


def inputs(batch, time, heads, dim, width, dtype=torch.float32, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, time, heads, n, generator=generator).to(dtype) for n in (dim, dim, width))
    lengths = torch.randint(0, time + 1, (batch,), generator=generator)
    if batch:
        lengths[0] = time
    return tuple(t.to(device) for t in (q, k, v, lengths))


def results(function, q, k, v, dout, *rest):
    """Output and gradients; `dout` as it is, so that its strides count."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = function(q, k, v, *rest)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.to(out.dtype))]


def compare(q, k, v, lengths, table=None, feature_map="elu", tolerance=3e-5, dout=None):
    if dout is None:
        dout = torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).to(v)
    mine = results(linear_attention, q, k, v, dout, lengths, table, feature_map)
    exact = results(reference, *(t.double() for t in (q, k, v, dout)), lengths, table, feature_map, 1e-6)
    for name, a, b in zip(("out", "dq", "dk", "dv"), mine, exact, strict=True):
        assert a.isfinite().all(), name
        if a.numel():
            error = (a.double() - b).abs().max() / (b.abs().max() + 1e-2)
            assert error < tolerance, f"{name} is {error:.1e} off"


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape, feature_map, rotary, device):
    q, k, v, lengths = inputs(*shape, device=device)
    if feature_map == "identity":  # keep the normaliser away from 0, where every implementation loses digits
        q, k = q.abs(), k.abs()
    if feature_map == "relu":
        q, k = q + 1, k + 1
    if rotary and shape[3] % 2:
        with pytest.raises(ValueError, match="even width"):
            rotary_table(shape[1], shape[3])
        return
    table = rotary_table(shape[1], shape[3], device=device) if rotary else None
    compare(q, k, v, lengths, table, feature_map, tolerance=2e-4)


@settings(max_examples=500, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 80), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 2**31),
)
def test_random_shapes(shape, seed, device):
    compare(*inputs(*shape, seed=seed, device=device), tolerance=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_half_precision_sums_in_float32(dtype, tolerance, device):
    compare(*inputs(2, 300, 2, 16, 16, dtype, device=device), tolerance=tolerance)
    q = torch.zeros(1, 40000, 1, 4, dtype=dtype, device=device)
    v = torch.ones(1, 40000, 1, 4, dtype=dtype, device=device)  # key sums of 40,000 and more would overflow float16
    out = linear_attention(q, q, v, torch.tensor([40000], device=device))
    torch.testing.assert_close(out, torch.ones_like(out))


def test_any_strides(device):
    """Transposed, interleaved, expanded and reversed layouts, and a gradient of stride 0 (`.sum().backward()`)."""
    q, k, v, lengths = inputs(2, 70, 3, 8, 8, device=device)
    joined = torch.stack([q, k, v], 2).transpose(0, 1).contiguous().transpose(0, 1)  # (2, 70, 3 tensors, 3, 8)
    compare(*joined.unbind(2), lengths)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    compare(*heads_first, lengths)
    dim_first = [t.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0) for t in (q, k, v)]
    compare(*dim_first, lengths)
    compare(q[:, :1].expand(-1, 70, -1, -1), k[:1].expand(2, -1, -1, -1), v, lengths)
    compare(q, k, v, lengths, dout=torch.ones((), device=device).expand(v.shape))


@pytest.mark.parametrize("lengths", [[5, 0, 3, 0], [0, 0, 0, 0], [70, 1, 69, 70], [99, 70, 2, -3]])
def test_lengths(lengths, device):
    """Empty rows give 0 with 0 gradient, not NaN; what stands in the padding, even NaN, is never read."""
    q, k, v, _ = inputs(4, 70, 2, 8, 8, device=device)
    lengths = torch.tensor(lengths, device=device)
    compare(q, k, v, lengths)
    padding = torch.arange(70, device=device) >= lengths[:, None]
    clean = linear_attention(q, k, v, lengths)
    dirty = linear_attention(*(t.masked_fill(padding[..., None, None], float("nan")) for t in (q, k, v)), lengths)
    assert torch.equal(clean, dirty)
    assert (clean[padding] == 0).all()


@pytest.mark.parametrize("value", [-30.0, -1e4, 1e4])
def test_extreme_inputs(value, device):
    """φ must not underflow to 0/0, nor its slope to NaN."""
    q = torch.full((1, 50, 1, 8), value, device=device)
    v, lengths = torch.randn(1, 50, 1, 8, device=device), torch.tensor([50], device=device)
    for t in results(linear_attention, q, q, v, torch.ones_like(v), lengths):
        assert t.isfinite().all()
    if value > -1e4:
        out = linear_attention(q, q, v, lengths, eps=1e-30)
        torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(v), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_shows(which, feature_map):
    """A trainer skips steps by it: a feature map must not make a number of NaN."""
    tensors = list(inputs(1, 40, 1, 8, 8)[:3])
    tensors[which][0, 3, 0, 2] = float("nan")
    out = linear_attention(*tensors, torch.tensor([40]), feature_map=feature_map)
    assert out[0, 3, 0].isnan().any()
    assert out[0, 9, 0].isnan().any() == (which > 0)


def test_a_row_alone_equals_the_row_in_a_batch_bit_for_bit(threads):
    q, k, v, lengths = inputs(3, 1200, 2, 16, 16)
    dout = torch.randn_like(v)
    whole = results(linear_attention, q, k, v, dout, lengths)
    for count in (1, 2):
        threads(count)
        for b in range(3):
            alone = results(
                linear_attention, *(t[b : b + 1, : lengths[b]] for t in (q, k, v, dout)), lengths[b : b + 1]
            )
            for a, w in zip(alone, whole, strict=True):
                assert torch.equal(a[0], w[b, : lengths[b]])


def test_the_same_bits_every_time(threads):
    q, k, v, lengths = inputs(2, 700, 1, 16, 16)
    first = results(linear_attention, q, k, v, torch.ones_like(v), lengths)
    for run in range(20):
        threads(1 + run % 2)
        for a, b in zip(results(linear_attention, q, k, v, torch.ones_like(v), lengths), first, strict=True):
            assert torch.equal(a, b)


def test_opcheck():
    """Schema, fake kernel, autograd registration and tracing agree with what the op does."""
    q, k, v, lengths = inputs(2, 40, 2, 6, 5)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    library.opcheck(torch.ops.asr.linear_attention, (q, k, v, lengths, rotary_table(40, 6), "elu", 1e-6))


def test_compiles_without_a_graph_break():
    q, k, v, lengths = inputs(2, 40, 2, 6, 5)
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    mine = results(compiled, q, k, v, torch.ones_like(v), lengths)
    for a, b in zip(mine, results(linear_attention, q, k, v, torch.ones_like(v), lengths), strict=True):
        assert torch.equal(a, b)


def test_mixed_dtypes_and_autocast():
    q, k, v, lengths = inputs(2, 40, 2, 6, 5)
    assert linear_attention(q.bfloat16(), k.bfloat16(), v, lengths).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(linear_attention(q, k, v, lengths), linear_attention(q, k, v, lengths))
        x = torch.nn.functional.linear(q, torch.eye(6))
        assert linear_attention(x, x, x, lengths).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"k": torch.zeros(2, 9, 2, 4)}, "q and k must be"),
        ({"v": torch.zeros(2, 10, 3, 4)}, "v must be"),
        ({"lengths": torch.zeros(3, dtype=torch.long)}, "lengths must be 2 integers"),
        ({"lengths": torch.zeros(2)}, "lengths must be 2 integers"),
        ({"table": torch.zeros(9, 4)}, "table must be"),
        ({"feature_map": "tanh"}, "feature_map must be one of elu, relu, identity"),
    ],
)
def test_wrong_shapes_are_named(change, reason):
    right = {"q": torch.zeros(2, 10, 2, 4), "k": torch.zeros(2, 10, 2, 4), "v": torch.zeros(2, 10, 2, 4)}
    with pytest.raises(ValueError, match=reason):
        linear_attention(**right | {"lengths": torch.tensor([10, 3])} | change)


def test_the_op_itself_refuses_what_would_read_out_of_bounds():
    q, k, v, lengths = inputs(2, 10, 2, 4, 4)
    op = torch.ops.asr.linear_attention
    for wrong in (
        (q, k[:, :9], v, lengths, None),
        (q, k, v[:1], lengths, None),
        (q, k, v, lengths[:1], None),
        (q, k, v, lengths.int(), None),
        (q, k, v, lengths, torch.zeros(9, 4)),
        (q, k.bfloat16(), v, lengths, None),
        (q.double(), k.double(), v.double(), lengths, None),
    ):
        with pytest.raises(RuntimeError):
            op(*wrong, "elu", 1e-6)


def test_reference_gradients():
    q, k, v, lengths = inputs(2, 7, 2, 4, 3)
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    table = rotary_table(7, 4)
    assert torch.autograd.gradcheck(lambda *t: reference(*t, lengths, table, "elu", 1e-6), (q, k, v))


def test_reference_is_the_explicit_form():
    """Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), pair by pair (Katharopoulos et al., equation 4)."""
    q, k, v, _ = (t.double() if t.is_floating_point() else t for t in inputs(1, 9, 1, 4, 3))
    phi = FEATURE_MAPS["elu"]
    out = linear_attention(q, k, v, torch.tensor([7]), eps=0.0)
    for i in range(7):
        similarity = torch.stack([(phi(q[0, i, 0]) * phi(k[0, j, 0])).sum() for j in range(7)])
        expected = (similarity[:, None] * v[0, :7, 0]).sum(0) / similarity.sum()
        torch.testing.assert_close(out[0, i, 0], expected)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_without_the_normaliser_only_the_numerator_is_left(feature_map):
    q, k, v, lengths = inputs(2, 33, 3, 8, 5)
    table, phi = rotary_table(33, 8), FEATURE_MAPS[feature_map]
    real = (torch.arange(33) < lengths[:, None])[:, :, None, None]
    sums = (phi(q) * (phi(k) * real).sum(1, keepdim=True)).sum(-1, keepdim=True)
    out = linear_attention(q, k, v, lengths, table, feature_map, normalise=False)
    whole = reference(*(t.double() for t in (q, k, v)), lengths, table, feature_map, eps=1e-6)
    torch.testing.assert_close(out.double(), whole * (sums.double() + 1e-6), atol=1e-3, rtol=1e-3)


def test_reference_is_the_same_whether_it_need_hide_padding_or_not():
    q, k, v, _ = inputs(2, 9, 2, 4, 3)
    lengths = torch.tensor([9, 9])
    padded = (F.pad(t, (0, 0, 0, 0, 0, 3), value=float("nan")) for t in (q, k, v))
    out = reference(*padded, lengths, None, "elu", 1e-6)
    torch.testing.assert_close(out[:, :9], reference(q, k, v, lengths, None, "elu", 1e-6))
    assert (out[:, 9:] == 0).all()


def test_elu_has_its_slope_at_zero():
    x = torch.tensor([-1e-6, 0.0, 1e-6], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(FEATURE_MAPS["elu"](x).sum(), x)
    torch.testing.assert_close(slope, torch.ones_like(slope), atol=2e-6, rtol=0)
