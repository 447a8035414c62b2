"""The compiled LSH attention against the reference in float64: values, gradients, and the same bits always."""

from __future__ import annotations

import math

import pytest
import torch

from asr.kernels.lsh import bucket_counts, hash_buckets, reference

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(autouse=True)
def on(device):
    """Every test runs on every device: where nothing else is said, tensors lie there."""
    with torch.device(device):
        yield


def here(*tensors):
    return [t.to(torch.get_default_device()) for t in tensors]


def draw(time, dim, width, size, rounds, lengths, heads=2, seed=0):
    """qk, v, dout (batch, time, heads, …), lengths, rotation."""
    g = torch.Generator("cpu").manual_seed(seed)
    shapes = ((len(lengths), time, heads, d) for d in (dim, width, width))
    qk, v, dout = here(*(torch.randn(shape, generator=g, device="cpu") for shape in shapes))
    rotation = torch.randn(rounds, dim, max(1, math.ceil(time / (2 * size))), generator=g, device="cpu")
    return 2 * qk, v, dout, torch.tensor(lengths, dtype=torch.long), *here(rotation)


def compiled(qk, v, dout, lengths, rotation, size, causal=False):
    """→ out, dqk, dv, lse, order"""
    out, lse, order = torch.ops.asr.lsh_attention(qk, v, lengths, rotation, size, causal)
    dqk, dv = torch.ops.asr.lsh_attention_backward(dout, qk, v, lengths, out, lse, order, size, causal)
    return out, dqk, dv, lse, order


def expected(qk, v, dout, lengths, rotation, size, causal=False):
    """→ out, dqk, dv in float64, zero at and past the lengths."""
    x, y = (t.detach().double().requires_grad_() for t in (qk, v))
    out = reference(x, y, lengths, rotation.double(), size, causal)
    return out.detach(), *torch.autograd.grad(out, (x, y), dout.double())


def compare(inputs, size, causal=False, tolerance=2e-5):
    for got, want in zip(compiled(*inputs, size, causal), expected(*inputs, size, causal), strict=False):
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got.double(), want, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("time", [1, 5, 31, 32, 33, 64, 65, 100, 257])
@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(time, rounds, causal):
    lengths = [time, 0, max(1, time // 2), time - 1]
    compare(draw(time, 32, 32, 32, rounds, lengths), 32, causal)


@pytest.mark.parametrize(("dim", "width"), [(1, 1), (3, 17), (7, 4), (16, 256), (33, 5), (64, 64), (80, 31), (256, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_any_head_dims(dim, width, causal):
    compare(draw(70, dim, width, 8, 3, [70, 41]), 8, causal)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 48, 65, 100, 150, 400])
def test_any_bucket_size(size):
    compare(draw(300, 8, 8, size, 2, [300, 151]), size)
    compare(draw(300, 8, 8, size, 2, [300, 151], seed=1), size, causal=True)


def test_many_rounds_and_many_buckets():
    compare(draw(300, 4, 4, 2, 64, [300], heads=1), 2)
    compare(draw(5000, 8, 4, 2, 2, [5000], heads=1), 2)  # 2048 buckets, the most there are


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision(dtype, tolerance):
    qk, v, dout, lengths, rotation = draw(200, 24, 20, 16, 4, [200, 77])
    qk, v, dout = (t.to(dtype) for t in (qk, v, dout))
    assert all(t.dtype == dtype for t in compiled(qk, v, dout, lengths, rotation, 16)[:3])
    compare((qk, v, dout, lengths, rotation), 16, tolerance=tolerance)
    compare((qk, v, dout, lengths, rotation.to(dtype)), 16, causal=True, tolerance=tolerance)


@pytest.mark.parametrize(("batch", "time"), [(0, 9), (2, 0), (0, 0)])
def test_empty(batch, time):
    inputs = draw(time, 8, 4, 4, 2, [0] * batch)
    out, dqk, dv, lse, order = compiled(*inputs, 4)
    assert out.shape == dv.shape == (batch, time, 2, 4)
    assert dqk.shape == (batch, time, 2, 8)
    assert lse.shape == (batch, 2, time)
    assert order.shape == (batch, 2, 2, time)
    assert compiled(*draw(7, 8, 4, 4, 2, [0, 0]), 4)[0].abs().sum() == 0


def test_any_strides():
    qk, v, dout, lengths, rotation = draw(90, 12, 10, 8, 3, [90, 50])
    want = compiled(qk, v, dout, lengths, rotation, 8)
    by_head = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (qk, v, dout)]
    by_column = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in (qk, v, dout)]
    packed = torch.cat([qk, v], -1).split([12, 10], -1)
    wide = torch.cat([rotation, rotation], -1)[..., : rotation.shape[-1]]
    for inputs in (
        (*by_head, lengths, rotation),
        (*by_column, lengths, wide),
        (*packed, dout, lengths, rotation.mT.contiguous().mT),
    ):
        for a, b in zip(compiled(*inputs, 8), want, strict=True):
            assert torch.equal(a, b)
    compare((qk, v, torch.ones(()).expand(v.shape), lengths, rotation), 8)
    compare((qk[:, :1].expand(qk.shape), v[:1, :, :1].expand(v.shape), dout, lengths, rotation), 8)


def test_more_frames_claimed_than_there_are():
    qk, v, dout, lengths, rotation = draw(40, 8, 8, 8, 2, [40, 40])
    for a, b in zip(
        compiled(qk, v, dout, lengths + 3, rotation, 8), compiled(qk, v, dout, lengths, rotation, 8), strict=True
    ):
        assert torch.equal(a, b)


def test_padding_is_not_read():
    qk, v, dout, lengths, rotation = draw(60, 8, 8, 8, 2, [60, 33])
    want = compiled(qk, v, dout, lengths, rotation, 8)
    for t in (qk, v, dout):
        t[1, 33:] = torch.nan
    for a, b in zip(compiled(qk, v, dout, lengths, rotation, 8), want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("causal", [False, True])
def test_zero_vectors(causal):
    qk, v, dout, lengths, rotation = draw(80, 8, 8, 8, 2, [80])
    qk[:, ::3] = 0
    compare((qk, v, dout, lengths, rotation), 8, causal)
    compare((torch.zeros_like(qk), v, dout, lengths, rotation), 8, causal)


@pytest.mark.parametrize("scale", [25, 1e4, 1e5])  # beyond 5e4 / sqrt(D) a frame may see itself
def test_large_values(scale):
    qk, v, dout, lengths, rotation = draw(120, 8, 8, 16, 3, [120, 70])
    compare((scale * qk.sign(), 1e4 * v, dout, lengths, rotation), 16, tolerance=1e-2)
    compare((-scale * torch.ones_like(qk), v, dout, lengths, rotation), 16, tolerance=1e-2)
    assert all(t.isfinite().all() for t in compiled(scale * qk, 1e4 * v, dout, lengths, rotation, 16)[:4])


def test_not_a_number_is_not_lost():
    qk, v, dout, lengths, rotation = draw(40, 8, 8, 8, 2, [40])
    qk[0, 7, 0, 3] = torch.nan
    out = compiled(qk, v, dout, lengths, rotation, 8)[0]
    assert out[0, 7, 0].isnan().all()
    assert out[0, :, 1].isfinite().all()


def test_a_frame_alone_sees_itself():
    qk, v, dout, lengths, rotation = draw(40, 8, 8, 1, 1, [1])
    out, dqk, dv, lse, _ = compiled(qk, v, dout, lengths, rotation, 1)
    assert torch.equal(out[0, 0], v[0, 0])
    assert torch.equal(dv[0, 0], dout[0, 0])
    assert dqk.abs().sum() == 0
    assert lse[0, :, 0].tolist() == [-5e4, -5e4]
    out = compiled(*draw(40, 8, 8, 8, 2, [40]), 8, True)
    assert torch.equal(out[0][0, 0], draw(40, 8, 8, 8, 2, [40])[1][0, 0])  # nothing before the first frame


def test_log_sum_exp():
    qk, v, dout, lengths, rotation = draw(30, 8, 8, 32, 2, [30], heads=1)
    x = qk[0, :, 0].double()
    scores = x @ (x / (x.norm(dim=-1, keepdim=True) + 1e-6)).T / 8**0.5
    want = scores.fill_diagonal_(-5e4).logsumexp(-1)
    torch.testing.assert_close(compiled(qk, v, dout, lengths, rotation, 32)[3][0, 0].double(), want, atol=1e-5, rtol=0)


def test_order_is_the_references_ties_included():
    g = torch.Generator("cpu").manual_seed(0)
    shapes = ((2, 400, 2, 5), (3, 5, 70))  # whole numbers: exact, and often equal
    qk, rotation = here(*(torch.randint(-1, 2, shape, generator=g, device="cpu").float() for shape in shapes))
    lengths = torch.tensor([400, 113])
    order = compiled(qk, qk, qk, lengths, rotation, 3)[4]
    buckets = hash_buckets(qk.transpose(1, 2), rotation, bucket_counts(lengths, 3))
    for b, n in enumerate(lengths.tolist()):
        assert torch.equal(order[b, ..., :n].long(), buckets[b, ..., :n].sort(dim=-1, stable=True).indices)


def test_causal_values_do_not_leak():
    qk, v, dout, lengths, rotation = draw(100, 8, 8, 8, 4, [100])
    later = v.clone()
    later[:, 61:] += 1
    a, b = (compiled(qk, t, dout, lengths, rotation, 8, True)[0] for t in (v, later))
    assert torch.equal(a[:, :61], b[:, :61])
    assert not torch.equal(a[:, 61:], b[:, 61:])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("scale", [1, 100])
def test_same_bits_alone_in_a_batch_and_with_any_number_of_threads(heads, scale, threads):
    qk, v, dout, lengths, rotation = draw(700, 16, 12, 16, 4, [700, 0, 333, 650], heads)
    qk = scale * qk
    threads(1)
    want = compiled(qk, v, dout, lengths, rotation, 16)
    for count in (1, 2, 3, 8, 16):  # from 4 heads for each thread to 4 threads for each head
        threads(count)
        for a, b in zip(compiled(qk, v, dout, lengths, rotation, 16), want, strict=True):
            assert torch.equal(a, b)
        for row, n in enumerate(lengths.tolist()):
            alone = (t[row : row + 1, :n] for t in (qk, v, dout))
            for a, b in zip(compiled(*alone, lengths[row : row + 1], rotation, 16)[:3], want, strict=False):
                assert torch.equal(a[0], b[row, :n])


def test_twenty_runs_agree():
    inputs = draw(300, 16, 16, 16, 4, [300, 200])
    want = compiled(*inputs, 16)
    for _ in range(19):
        for a, b in zip(compiled(*inputs, 16), want, strict=True):
            assert torch.equal(a, b)


def test_wrong_inputs_are_refused():
    qk, v, dout, lengths, rotation = draw(40, 8, 6, 8, 2, [40, 20])
    out, lse, order = torch.ops.asr.lsh_attention(qk, v, lengths, rotation, 8, False)
    for bad in (
        (qk[..., :5], v, lengths, rotation, 8),
        (qk, v[:, :9], lengths, rotation, 8),
        (qk, v, lengths[:1], rotation, 8),
        (qk, v, lengths.int(), rotation, 8),
        (qk, v, lengths, rotation[..., :0], 8),
        (qk, v, lengths, rotation[:0], 8),
        (qk, v, lengths, rotation.double(), 8),
        (qk, v, lengths, rotation, 0),
        (qk.double(), v.double(), lengths, rotation, 8),
        (qk.half(), v, lengths, rotation, 8),
    ):
        with pytest.raises(RuntimeError):
            torch.ops.asr.lsh_attention(*bad, False)
    for bad in (
        (dout[..., :5], out, lse, order),
        (dout, out[:, :9], lse, order),
        (dout, out, lse[..., :9], order),
        (dout, out, lse, order[..., :9]),
        (dout, out, lse, order.long()),
        *([] if order.is_cuda else [(dout, out, lse, order + 1)]),  # a GPU would have to be waited for
    ):
        with pytest.raises(RuntimeError):
            torch.ops.asr.lsh_attention_backward(bad[0], qk, v, lengths, *bad[1:], 8, False)
