"""The CUDA kernels of linear attention without a GPU: compiled as plain C++, a thread of the system for each of CUDA's.

The results are compared with the ops' definition in float64, under sanitizers. Faults planted in a copy of the sources
prove that they would be seen.
"""

from __future__ import annotations

import struct

import pytest
import torch

from asr.kernels import rotary_table
from asr.kernels.causal import reference as causal_reference
from asr.kernels.linear import reference as linear_reference

PROGRAM = "linear_attention"  # of tests/emulation
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAPS = ("elu", "relu", "identity")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Case:
    """Inputs of one op, and what it should give. `op`: 0 bidirectional, 1 causal, 2 step."""

    def __init__(
        self, op, shape, dtype=torch.float32, rotary=False, decay=False, start=False, feature_map="elu",
        normalise=True, lengths=None, layout="plain", tile=16, segment=32,
    ):  # fmt: skip
        self.op, self.dtype, self.feature_map, self.normalise = op, dtype, feature_map, normalise
        self.tile, self.segment = tile, segment
        batch, time, heads, dim, width = self.shape = shape
        generator = torch.Generator().manual_seed(op + time + dim)

        def draw(*size):
            return torch.randn(*size, generator=generator)

        shift = 1.0 if feature_map == "relu" else 0.0
        self.q, self.k = (self.lay(draw(batch, time, heads, dim) + shift, layout) for _ in range(2))
        self.v, self.dout = (self.lay(draw(batch, time, heads, width), layout) for _ in range(2))
        if layout == "plain":
            self.dout = torch.ones(1, dtype=dtype).expand(batch, time, heads, width)
        self.lengths = torch.tensor(lengths or [time] * batch)
        self.table = rotary_table(time, dim) if rotary else None
        self.decay = torch.rand(heads, generator=generator) * 0.5 + 0.49 if decay else None
        self.kv = draw(batch, heads, dim, width) if start or op == 2 else None
        self.ksum = draw(batch, heads, dim).abs() if start or op == 2 else None
        self.dkv, self.dksum = draw(batch, heads, dim, width), draw(batch, heads, dim)

    def lay(self, x, layout):
        x = x.to(self.dtype)
        if layout == "heads first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "dim first":
            return x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
        return x

    def packed(self) -> bytes:
        flags = [t is not None for t in (self.table, self.decay, self.kv)]
        sizes = (*self.shape, self.segment, MAPS.index(self.feature_map), self.normalise, *flags)
        parts = [struct.pack("=14q", self.op, DTYPES.index(self.dtype), self.tile, *sizes)]
        for x in (self.q, self.k, self.v, self.dout):
            raw = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            data = raw.contiguous().view(torch.uint8).numpy().tobytes()
            parts += [struct.pack("=6q", len(data), x.storage_offset() * x.element_size(), *x.stride()), data]
        for x in (self.lengths, self.table, self.decay, self.kv, self.ksum, self.dkv, self.dksum):
            parts.append(b"" if x is None else x.contiguous().numpy().tobytes())
        return b"".join(parts)

    def unpack(self, data: bytes) -> tuple[dict[str, torch.Tensor], bytes]:
        """The program's results, and what is left of `data`."""
        batch, _, heads, _, _ = self.shape
        state = {"last kv": self.dkv, "last ksum": self.dksum}
        wanted = {"out": self.v} | state
        if self.op < 2:
            wanted |= {"q": self.q, "k": self.k, "v": self.v, "kv": self.dkv, "ksum": self.dksum}
            wanted["decay"] = torch.empty(batch, heads)
        found = {}
        for name, like in wanted.items():
            size = like.numel() * like.element_size()
            found[name] = torch.frombuffer(bytearray(data[:size]), dtype=like.dtype).view(like.shape) if size else like
            data = data[size:]
        if self.decay is not None and "decay" in found:
            found["decay"] = found["decay"].double().sum(0) / self.decay
        return found, data

    def expected(self) -> dict[str, torch.Tensor]:
        names = ("q", "k", "v", "decay", "kv", "ksum")
        leaves = {n: t.double().requires_grad_() for n in names if (t := getattr(self, n)) is not None}
        q, k, v = (leaves[n] for n in names[:3])
        if self.op == 0:
            outs = (linear_reference(q, k, v, self.lengths, self.table, self.feature_map, 1e-6),)
            douts = (self.dout.double(),)
        else:
            options = (*(leaves.get(n) for n in names[3:]), self.feature_map, self.normalise, 1e-6, 16)
            outs = causal_reference(q, k, v, self.lengths, self.table, *options)
            douts = tuple(t.double() for t in (self.dout, self.dkv, self.dksum))
        found = dict(zip(("out", "last kv", "last ksum"), (t.detach() for t in outs), strict=False))
        if self.op < 2:
            wanted = [(o, d) for o, d in zip(outs, douts, strict=True) if o.requires_grad]
            outs, douts = zip(*wanted, strict=True)
            grads = torch.autograd.grad(outs, list(leaves.values()), douts, allow_unused=True)
            pairs = zip(leaves.items(), grads, strict=True)
            found |= {n: torch.zeros_like(t) if g is None else g for (n, t), g in pairs}
        return found

    def check(self, found: dict[str, torch.Tensor]) -> None:
        for name, b in self.expected().items():
            a = found[name].double()
            assert a.isfinite().all(), f"{self}: {name}"
            if a.numel():
                error = ((a - b).abs().max() / (b.abs().max() + 1e-2)).item()
                assert error < TOLERANCE[self.dtype] * (10 if name == "decay" else 1), f"{self}: {name} {error:.1e} off"

    def __str__(self):
        flags = (self.table is not None, self.decay is not None, self.kv is not None)
        return f"op {self.op}, {self.shape}, {self.dtype}, {self.feature_map}, rotary, decay, start {flags}"


BF16, FP16 = torch.bfloat16, torch.float16
CASES = [
    Case(0, (2, 37, 2, 6, 7), rotary=True, lengths=[37, 18]),
    Case(0, (1, 33, 1, 20, 18), layout="heads first"),
    Case(0, (4, 5, 1, 1, 1), lengths=[5, 0, 9, -3], layout="dim first"),
    Case(0, (1, 70, 1, 16, 16), BF16, rotary=True, feature_map="relu", layout="heads first"),
    Case(0, (1, 20, 1, 17, 5), FP16, layout="dim first"),
    Case(1, (2, 37, 2, 6, 7), rotary=True, decay=True, start=True, lengths=[37, 18], layout="heads first"),
    Case(1, (1, 50, 1, 20, 18), decay=True, layout="heads first"),
    Case(1, (1, 34, 1, 34, 4), rotary=True, layout="dim first"),
    Case(1, (3, 33, 1, 3, 5), start=True, normalise=False, feature_map="identity", lengths=[33, 0, 99]),
    Case(1, (1, 40, 1, 16, 16), BF16, rotary=True, decay=True, start=True, layout="heads first"),
    Case(1, (1, 20, 2, 5, 17), FP16, decay=True, layout="dim first"),
    Case(1, (1, 70, 1, 34, 20), BF16, rotary=True, start=True, layout="heads first", tile=32, segment=64),
    Case(0, (1, 40, 1, 20, 34), BF16, layout="heads first", tile=32, segment=64),
    *(Case(op, shape, start=True) for op in (0, 1) for shape in ((0, 5, 2, 4, 4), (2, 0, 1, 4, 4))),
    Case(2, (2, 1, 3, 6, 5), rotary=True, decay=True),
    Case(2, (1, 1, 1, 20, 40), FP16, normalise=False),
]

SMALL = [  # together they pass every barrier where it matters
    Case(2, (1, 1, 1, 6, 40)),
    Case(1, (1, 33, 1, 18, 18), rotary=True, decay=True, start=True),
    Case(1, (1, 33, 1, 3, 3), BF16, decay=True, tile=32, segment=64),  # blocks of two warps
]


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_values_and_gradients(emulation, sanitizer):
    emulation.check(sanitizer, SMALL, CASES)


def test_every_barrier_is_needed(emulation):
    emulation.check_barriers(SMALL)


@pytest.mark.parametrize(
    "fault",
    [
        ("tile.cuh", "return t < stop && d < dim;", "return t <= stop && d < dim;"),
        ("linear_attention.cuh", "kv[(d0 + i) * p.width + m0 + j]", "kv[(d0 + i) * p.width + m0 + j + 1]"),
    ],
    ids=lambda fault: fault[0],
)
def test_an_index_off_by_one_is_seen(emulation, tmp_path, fault):
    emulation.check_fault(tmp_path, fault, SMALL)
