"""Causal linear attention: the compiled op against its definition in float64, its states, and the step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import library

from asr.kernels import causal_linear_attention, causal_linear_step, rotary_table
from asr.kernels.causal import reference

pytestmark = pytest.mark.usefixtures("kernels")
SHAPES = [  # batch, time, heads, dim, width
    (2, 1, 1, 2, 1),
    (2, 31, 2, 6, 7),
    (2, 32, 3, 32, 32),
    (2, 33, 2, 10, 5),
    (1, 64, 2, 16, 24),
    (2, 513, 1, 8, 20),
    (1, 1100, 1, 16, 16),
    (2, 600, 3, 4, 9),
    (1, 40, 1, 256, 100),
    (2, 0, 2, 4, 4),
    (0, 5, 2, 4, 4),
]


class Case:
    """Random inputs, outputs and gradients of one shape."""

    def __init__(self, shape, rotary=False, decay=False, start=False, seed=0, device="cpu"):
        batch, time, heads, dim, width = shape
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *size: torch.randn(*size, generator=generator)  # noqa: E731
        self.q, self.k, self.v = (
            draw(batch, time, heads, dim),
            draw(batch, time, heads, dim),
            draw(batch, time, heads, width),
        )
        self.lengths = torch.randint(0, time + 1, (batch,), generator=generator)
        if batch:
            self.lengths[0] = time
        self.table = rotary_table(time, dim) if rotary else None
        self.decay = torch.rand(heads, generator=generator) * 0.5 + 0.49 if decay else None
        self.kv = draw(batch, heads, dim, width) if start else None
        self.ksum = draw(batch, heads, dim).abs() if start else None
        self.douts = [t.to(device) for t in (draw(batch, time, heads, width), draw(batch, heads, dim, width))]
        self.douts.append(draw(batch, heads, dim).to(device))
        for name in ("q", "k", "v", "lengths", "table", "decay", "kv", "ksum"):
            if (tensor := getattr(self, name)) is not None:
                setattr(self, name, tensor.to(device))

    def run(self, function, dtype=torch.float32, **options):
        cast = lambda t: None if t is None else t.to(dtype).detach().requires_grad_()  # noqa: E731
        named = {name: cast(getattr(self, name)) for name in ("q", "k", "v", "decay", "kv", "ksum")}
        out = function(**named, lengths=self.lengths, table=self.table, **options)
        leaves = {name: t for name, t in named.items() if t is not None}
        pairs = [(o, d.to(dtype)) for o, d in zip(out, self.douts, strict=True) if o.requires_grad]  # not all at time 0
        outs, douts = zip(*pairs, strict=True)
        grads = torch.autograd.grad(outs, list(leaves.values()), douts, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves.values(), strict=True)]
        return dict(zip(("out", "last kv", "last ksum", *leaves), [t.detach() for t in (*out, *filled)], strict=True))

    def compare(self, tolerance=3e-5, **options):
        options = {"feature_map": "elu", "normalise": True, "eps": 1e-6, "chunk": 16} | options
        mine, exact = self.run(causal_linear_attention, **options), self.run(reference, torch.float64, **options)
        for name, b in exact.items():
            a = mine[name].double()
            assert a.isfinite().all(), name
            if a.numel():
                error = (a - b).abs().max() / (b.abs().max() + 1e-2)
                assert error < tolerance * (10 if name == "decay" else 1), f"{name} is {error:.1e} off"


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("rotary", "decay", "start"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape, rotary, decay, start, normalise, device):
    Case(shape, rotary, decay, start, device=device).compare(normalise=normalise, tolerance=2e-4)


@pytest.mark.parametrize("feature_map", ["relu", "identity"])
def test_feature_maps(feature_map, device):
    case = Case((2, 70, 2, 8, 6), True, True, True, device=device)
    case.compare(feature_map=feature_map, normalise=False, tolerance=2e-4)


@settings(max_examples=500, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 2), st.integers(0, 80), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    decay=st.booleans(),
    start=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_shapes(shape, decay, start, seed, device):
    Case(shape, shape[3] % 2 == 0, decay, start, seed, device).compare(tolerance=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_half_precision(dtype, tolerance, device):
    case = Case((2, 100, 2, 16, 16), device=device)
    case.q, case.k, case.v = (t.to(dtype) for t in (case.q, case.k, case.v))
    mine = causal_linear_attention(case.q, case.k, case.v, case.lengths)
    exact = causal_linear_attention(case.q.double(), case.k.double(), case.v.double(), case.lengths)
    assert mine.out.dtype == dtype
    assert mine.kv.dtype == torch.float32
    for a, b in zip(mine, exact, strict=True):
        assert (a.double() - b).abs().max() / b.abs().max() < tolerance


@pytest.mark.parametrize("shape", [(1, 1100, 1, 16, 16), (2, 200, 3, 8, 8), (2, 600, 3, 8, 8)])
@pytest.mark.parametrize("decay", [False, True])
def test_threads_and_batches_change_no_bit(shape, decay, threads):
    """One head of two segments is worked on in pieces by two threads, and in one go by one."""
    case = Case(shape, True, decay, True)
    threads(1)
    one = case.run(causal_linear_attention)
    threads(2)
    two = case.run(causal_linear_attention)
    for name, a in one.items():
        assert torch.equal(a, two[name]), name
    last = len(case.lengths) - 1
    n = case.lengths[last]
    alone = causal_linear_attention(
        *(t[last:, :n] for t in (case.q, case.k, case.v)),
        case.lengths[last:],
        case.table,
        case.decay,
        case.kv[last:],
        case.ksum[last:],
    )
    assert torch.equal(alone.out[0], one["out"][last, :n])
    assert torch.equal(alone.kv[0], one["last kv"][last])


def test_no_frame_sees_the_future(device):
    case = Case((1, 100, 2, 8, 8), True, device=device)
    before = causal_linear_attention(case.q, case.k, case.v, case.lengths, case.table).out
    for t in (1, 31, 32, 63, 99):
        q, k, v = (x.clone() for x in (case.q, case.k, case.v))
        for x in (q, k, v):
            x[:, t] += 1
        after = causal_linear_attention(q, k, v, case.lengths, case.table).out
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


def test_a_state_goes_on_exactly(device):
    case = Case((2, 90, 2, 8, 8), True, True, device=device)
    lengths = torch.tensor([90, 90], device=device)
    whole = causal_linear_attention(case.q, case.k, case.v, lengths, case.table, case.decay)
    parts, state, at = [], (None, None), 0
    for n in (1, 30, 32, 0, 27):
        piece = slice(at, at + n)
        out = causal_linear_attention(
            *(t[:, piece] for t in (case.q, case.k, case.v)),
            torch.tensor([n, n], device=device),
            case.table[piece],
            case.decay,
            *state,
        )
        parts.append(out.out)
        state, at = (out.kv, out.ksum), at + n
    torch.testing.assert_close(torch.cat(parts, 1), whole.out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, (whole.kv, whole.ksum), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_steps_are_the_recurrence(backend, monkeypatch, device):
    monkeypatch.setenv("ASR_KERNELS", backend)
    case = Case((2, 40, 3, 6, 5), True, True, device=device)
    lengths = torch.tensor([40, 40], device=device)
    whole = causal_linear_attention(case.q, case.k, case.v, lengths, case.table, case.decay)
    kv, ksum = torch.zeros(2, 3, 6, 5, device=device), torch.zeros(2, 3, 6, device=device)
    for t in range(40):
        frame = (x[:, t] for x in (case.q, case.k, case.v))
        out = causal_linear_step(*frame, kv, ksum, case.decay, case.table[t])
        torch.testing.assert_close(out, whole.out[:, t], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((kv, ksum), (whole.kv, whole.ksum), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[5, 0, 3, 0], [0, 0, 0, 0], [70, 1, 69, 33]])
def test_padding_is_never_read_and_leaves_the_state_alone(lengths, device):
    case = Case((4, 70, 2, 8, 8), decay=True, start=True, device=device)
    case.lengths = torch.tensor(lengths, device=device)
    case.compare()
    padding = (torch.arange(70, device=device) >= case.lengths[:, None])[..., None, None]
    clean = case.run(causal_linear_attention)
    case.q, case.k, case.v = (t.masked_fill(padding, float("nan")) for t in (case.q, case.k, case.v))
    dirty = case.run(causal_linear_attention)
    for name, a in clean.items():
        assert torch.equal(a, dirty[name]), name
    for b in range(4):
        if lengths[b] == 0:
            assert torch.equal(clean["last kv"][b], case.kv[b])


@pytest.mark.parametrize("decay", [0.0, 1e-6, 0.5, 1.0])
def test_decay_from_nothing_to_everything(decay, device):
    case = Case((1, 70, 2, 8, 8), start=True, device=device)
    case.decay = torch.full((2,), decay, device=device)
    mine = case.run(causal_linear_attention)
    assert all(t.isfinite().all() for t in mine.values())
    exact = reference(
        *(t.double() for t in (case.q, case.k, case.v)), case.lengths, None, case.decay.double(), case.kv.double(),
        case.ksum.double(), "elu", True, 1e-6, 1,
    )  # fmt: skip
    torch.testing.assert_close(mine["out"].double(), exact.out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [-30.0, -1e4, 1e4])
def test_extreme_inputs(value, device):
    case = Case((1, 70, 1, 8, 8), device=device)
    case.q = case.k = torch.full((1, 70, 1, 8), value, device=device)
    assert all(t.isfinite().all() for t in case.run(causal_linear_attention).values())


def test_what_is_not_finite_shows_from_there_on():
    case = Case((1, 70, 1, 8, 8))
    case.k[0, 40, 0, 2] = float("nan")
    out = causal_linear_attention(case.q, case.k, case.v, case.lengths).out[0, :, 0]
    assert out[:40].isfinite().all()
    assert out[40:].isnan().any(1).all()


def test_stride_zero_gradient(device):
    case = Case((2, 40, 2, 8, 8), device=device)
    q = case.q.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    causal_linear_attention(q, case.k, case.v, case.lengths).out.sum().backward()
    exact = case.q.double().requires_grad_()
    causal_linear_attention(exact, case.k.double(), case.v.double(), case.lengths).out.sum().backward()
    torch.testing.assert_close(q.grad.double(), exact.grad, atol=1e-5, rtol=1e-4)


def test_opcheck_and_compile():
    case = Case((2, 40, 2, 6, 5), True, True, True)
    leaves = [t.requires_grad_() for t in (case.q, case.k, case.v)]
    more = [case.decay.requires_grad_(), case.kv.requires_grad_(), case.ksum.requires_grad_()]
    arguments = (*leaves, case.lengths, case.table, *more, "elu", True, 1e-6)
    library.opcheck(torch.ops.asr.causal_linear_attention, arguments)
    with torch.no_grad():
        step = (*(t[:, 0] for t in leaves), case.table[0], case.decay, case.kv.clone(), case.ksum.clone())
        library.opcheck(torch.ops.asr.causal_linear_step, (*step, "elu", True, 1e-6))
    compiled = torch.compile(causal_linear_attention, fullgraph=True, backend="aot_eager")
    for name, a in case.run(compiled).items():
        torch.testing.assert_close(a, case.run(causal_linear_attention)[name], msg=name)


def test_wrong_states_are_named():
    case = Case((2, 10, 2, 4, 4), start=True)
    tensors = (case.q, case.k, case.v, case.lengths)
    with pytest.raises(ValueError, match="both kv and ksum"):
        causal_linear_attention(*tensors, kv=case.kv)
    with pytest.raises(ValueError, match=r"kv must be \(2, 2, 4, 4\)"):
        causal_linear_attention(*tensors, kv=case.kv[:1], ksum=case.ksum)
    with pytest.raises(ValueError, match=r"decay must be \(2,\)"):
        causal_linear_attention(*tensors, decay=torch.ones(3))


def test_reference_gradients_and_chunks():
    case = Case((2, 7, 2, 4, 3), True, True, True)
    leaves = [t.double().requires_grad_() for t in (case.q, case.k, case.v, case.decay, case.kv, case.ksum)]

    def run(q, k, v, decay, kv, ksum, chunk=3):
        return reference(q, k, v, case.lengths, case.table, decay, kv, ksum, "elu", True, 1e-6, chunk)

    assert torch.autograd.gradcheck(run, leaves)
    for chunk in (1, 2, 7, 100):
        for a, b in zip(run(*leaves, chunk=chunk), run(*leaves), strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


MEMORY = """
import resource, torch
from asr.kernels import causal_linear_attention

def run(time):
    q, k, v, gradient = (torch.ones(1, time, 2, 64) for _ in range(4))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = causal_linear_attention(*leaves, torch.tensor([time])).out
    out.backward(gradient)
    return sum(t.nbytes for t in (q, k, v, gradient, out, q.grad, k.grad, v.grad))

run(1024)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = run(65536)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / held)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in KB on Linux only")
def test_forward_and_backward_need_no_more_memory_than_what_goes_in_and_comes_out(kernels):
    """States are computed anew, not stored: those of every frame would take 64 times the inputs."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    assert float(out) < 1.05
