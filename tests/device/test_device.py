"""What the kernels must keep on a real GPU, beside the tests of tests/kernels that run there too."""

from __future__ import annotations

import pytest
import torch
from torch import library as torch_library

from asr.kernels import backend, build, causal_linear_attention, linear_attention, lsh_attention, rotary_table

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True, scope="module")
def library():
    assert build.load_cuda() is None
    assert build.load() is None


def run(op, q, k, v, lengths, *rest):
    """Output and gradients."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = op(q, k, v, lengths, *rest)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), torch.ones_like(out), materialize_grads=True)]


def causal(q, k, v, lengths, table=None, decay=None):
    return causal_linear_attention(q, k, v, lengths, table, decay).out


def rotation(q, size=32):
    columns = -(-q.shape[1] // (2 * size))
    return torch.randn(4, q.shape[3], columns, generator=torch.Generator().manual_seed(1)).to(q.device)


def lsh(q, k, v, lengths, table=None):
    return lsh_attention(q, v, lengths, rotation(q), 32)


def draw(batch, time, heads, dim, width, dtype=torch.float32, device="cuda"):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(batch, time, heads, n, generator=generator) for n in (dim, dim, width)]
    return [t.to(device, dtype) for t in tensors]


OPS = pytest.mark.parametrize("op", [linear_attention, causal, lsh])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@OPS
@DTYPES
def test_twenty_runs_agree_to_the_bit(op, dtype):
    q, k, v = draw(4, 1100, 4, 64, 64, dtype)
    lengths = torch.tensor([1100, 700, 0, 1], device="cuda")
    table = rotary_table(1100, 64, device=q.device)
    first = run(op, q, k, v, lengths, table)
    for _ in range(20):
        for a, b in zip(run(op, q, k, v, lengths, table), first, strict=True):
            assert torch.equal(a, b)


@OPS
@DTYPES
@pytest.mark.parametrize("sizes", [(64, 64), (80, 48), (128, 128), (256, 200), (33, 1)])
def test_at_real_sizes(op, dtype, sizes):
    """Against the definition on the GPU, in float64."""
    q, k, v = draw(2, 700, 2, *sizes, dtype)
    lengths = torch.tensor([700, 333], device="cuda")
    mine = run(op, q, k, v, lengths)
    with backend.forced("reference"):
        exact = run(op, q.double(), k.double(), v.double(), lengths)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for a, b in zip(mine, exact, strict=True):
        assert ((a.double() - b).abs().max() / (b.abs().max() + 1e-9)).item() < tolerance


@OPS
@DTYPES
def test_a_row_alone_is_the_row_in_a_batch(op, dtype):
    q, k, v = draw(3, 300, 2, 64, 32, dtype)
    lengths = torch.tensor([300, 120, 299], device="cuda")
    whole = run(op, q, k, v, lengths)
    for row in range(3):
        alone = run(op, *(t[row : row + 1] for t in (q, k, v)), lengths[row : row + 1])
        for a, b in zip(alone, whole, strict=True):
            assert torch.equal(a[0], b[row])


@OPS
def test_on_another_stream(op):
    """The inputs are made late on that stream: an op on the default stream would read too early."""
    q, k, v = draw(2, 500, 4, 64, 64)
    lengths = torch.tensor([500, 400], device="cuda")
    want = run(op, q, k, v, lengths)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        late = [torch.full_like(t, torch.nan) for t in (q, k, v)]
        torch.cuda._sleep(200_000_000)
        for to, t in zip(late, (q, k, v), strict=True):
            to.copy_(t)
        got = run(op, *late, lengths)
    torch.cuda.synchronize()
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@OPS
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_another_gpu(op):
    q, k, v = draw(2, 100, 2, 16, 16)
    lengths = torch.tensor([100, 50], device="cuda")
    want = run(op, q, k, v, lengths)
    there = [t.to("cuda:1") for t in (q, k, v, lengths)]
    assert torch.cuda.current_device() == 0
    for a, b in zip(run(op, *there), want, strict=True):
        assert a.device.index == 1
        assert torch.equal(a.to("cuda:0"), b)


@OPS
def test_tensors_on_two_devices_are_refused(op):
    q, k, v = draw(2, 10, 2, 4, 4)
    with pytest.raises(RuntimeError, match="different devices"):
        op(q, k, v, torch.tensor([10, 10]))


@OPS
def test_more_than_two_billion_elements(op):
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("not enough memory")
    time = 2**31 // (128 * 64) + 100
    q, k, v = (torch.rand(1, time, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    with torch.no_grad():
        out = op(q, k, v, torch.tensor([time], device="cuda"))
    part = op(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], torch.tensor([time], device="cuda"))
    assert torch.equal(out[:, :, -1:], part)


def test_opcheck():
    q, k, v = (t.requires_grad_() for t in draw(2, 40, 2, 6, 5))
    lengths, table = torch.tensor([40, 20], device="cuda"), rotary_table(40, 6, device=q.device)
    torch_library.opcheck(torch.ops.asr.linear_attention, (q, k, v, lengths, table, "elu", 1e-6))
    arguments = (q, k, v, lengths, table, None, None, None, "elu", True, 1e-6)
    torch_library.opcheck(torch.ops.asr.causal_linear_attention, arguments)
    torch_library.opcheck(torch.ops.asr.lsh_attention, (q, v, lengths, rotation(q, 8), 8, False))


@DTYPES
def test_lsh_sorts_as_the_processor_does(dtype):
    """Whole numbers: hashes are exact and often equal."""
    generator = torch.Generator().manual_seed(0)
    qk = torch.randint(-1, 2, (2, 5000, 2, 5), generator=generator).to(dtype)
    turns = torch.randint(-1, 2, (3, 5, 1024), generator=generator).float()
    lengths = torch.tensor([5000, 1213])
    here = torch.ops.asr.lsh_attention(qk, qk, lengths, turns, 2, False)[2]
    there = torch.ops.asr.lsh_attention(*(t.cuda() for t in (qk, qk, lengths, turns)), 2, False)[2].cpu()
    for row, n in enumerate(lengths.tolist()):
        assert torch.equal(here[row, ..., :n], there[row, ..., :n])


def test_an_order_that_is_none_touches_no_memory():
    qk, _, v = draw(2, 300, 2, 16, 16)
    lengths, turns = torch.tensor([300, 100], device="cuda"), rotation(qk)
    out, lse, order = torch.ops.asr.lsh_attention(qk, v, lengths, turns, 32, False)
    for wrong in (order + 2**30, -order - 1, order + 1):
        torch.ops.asr.lsh_attention_backward(v, qk, v, lengths, out, lse, wrong, 32, False)
    torch.cuda.synchronize()
