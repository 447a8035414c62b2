"""The CUDA kernels of LSH attention without a GPU, as in test_cuda_emulation.py."""

from __future__ import annotations

import struct

import pytest
import torch

from asr.kernels.lsh import bucket_counts, hash_buckets, reference

PROGRAM = "lsh_attention"  # of tests/emulation
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCE = {torch.float32: 2e-5, BF16: 2e-2, FP16: 3e-3}


class Case:
    """Inputs of the op, and what it should give. `whole`: of whole numbers, whose hashes are exact and often equal."""

    def __init__(
        self, shape, dtype=torch.float32, rounds=2, size=8, causal=False, lengths=None, layout="plain", tile=16,
        whole=False, scale=2.0,
    ):  # fmt: skip
        self.shape, self.dtype, self.tile = shape, dtype, tile
        self.rounds, self.size, self.causal, self.whole = rounds, size, causal, whole
        batch, time, heads, dim, width = shape
        generator = torch.Generator().manual_seed(time + dim + rounds)

        def draw(*size):
            return (
                torch.randint(-1, 2, size, generator=generator).float()
                if whole
                else torch.randn(size, generator=generator)
            )

        self.qk = self.lay(draw(batch, time, heads, dim) * (1 if whole else scale), layout)
        self.v, self.dout = (self.lay(draw(batch, time, heads, width), layout) for _ in range(2))
        if layout == "plain":
            self.dout = torch.ones(1, dtype=dtype).expand(batch, time, heads, width)
        self.lengths = torch.tensor(lengths or [time] * batch)
        self.rotation = draw(rounds, dim, max(1, -(-time // (2 * size))))

    def lay(self, x, layout):
        x = x.to(self.dtype)
        if layout == "heads first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "dim first":
            return x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
        return x

    def packed(self) -> bytes:
        options = (self.rounds, self.size, self.causal, self.rotation.shape[2])
        parts = [struct.pack("=11q", DTYPES.index(self.dtype), self.tile, *self.shape, *options)]
        for x in (self.qk, self.v, self.dout):
            raw = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            data = raw.contiguous().view(torch.uint8).numpy().tobytes()
            parts += [struct.pack("=6q", len(data), x.storage_offset() * x.element_size(), *x.stride()), data]
        return b"".join([*parts, self.lengths.numpy().tobytes(), self.rotation.contiguous().numpy().tobytes()])

    def unpack(self, data: bytes) -> tuple[dict[str, torch.Tensor], bytes]:
        """The program's results, and what is left of `data`."""
        batch, time, heads, _, _ = self.shape
        lse, order = torch.empty(batch, heads, time), torch.empty(batch, heads, self.rounds, time, dtype=torch.int32)
        found = {}
        for name, like in {"out": self.v, "lse": lse, "order": order, "qk": self.qk, "v": self.v}.items():
            size = like.numel() * like.element_size()
            found[name] = torch.frombuffer(bytearray(data[:size]), dtype=like.dtype).view(like.shape) if size else like
            data = data[size:]
        return found, data

    def check(self, found: dict[str, torch.Tensor]) -> None:
        qk, v = (t.double().requires_grad_() for t in (self.qk, self.v))
        lengths = self.lengths.clamp(0, self.shape[1])
        out = reference(qk, v, lengths, self.rotation.double(), self.size, self.causal)
        grads = torch.autograd.grad(out, (qk, v), self.dout.double(), materialize_grads=True)
        assert found["lse"].isfinite().all(), str(self)
        for name, b in zip(("out", "qk", "v"), (out.detach(), *grads), strict=True):
            a = found[name].double()
            assert a.isfinite().all(), f"{self}: {name}"
            if a.numel():
                error = ((a - b).abs().max() / (b.abs().max() + 1e-2)).item()
                assert error < TOLERANCE[self.dtype], f"{self}: {name} {error:.1e} off"
        counts = bucket_counts(lengths, self.size)
        buckets = hash_buckets(self.qk.double().transpose(1, 2), self.rotation.double(), counts)
        for row, n in enumerate(lengths.tolist()):
            order = found["order"][row].long()
            assert torch.equal(order.sort(-1).values, torch.arange(self.shape[1]).expand(order.shape)), str(self)
            if self.whole:
                assert torch.equal(order[..., :n], buckets[row, ..., :n].sort(dim=-1, stable=True).indices), str(self)

    def __str__(self):
        return f"{self.shape}, {self.dtype}, {self.rounds} rounds of {self.size}, causal {self.causal}"


CASES = [
    Case((2, 37, 2, 6, 7), lengths=[37, 18], layout="heads first"),
    Case((2, 37, 2, 6, 7), causal=True, rounds=3, size=5, lengths=[37, 30], layout="dim first"),
    Case((4, 5, 1, 1, 1), size=2, lengths=[5, 0, 9, -3]),
    Case((1, 40, 1, 34, 4), size=16, layout="dim first"),
    Case((1, 40, 1, 4, 34), rounds=2, size=50, layout="heads first"),  # one bucket
    Case((1, 21, 1, 3, 3), rounds=10, size=4, causal=True),  # more rounds than lie in shared memory at once
    Case((1, 70, 1, 5, 3), size=1, whole=True),
    Case((1, 50, 1, 3, 3), rounds=3, size=3, whole=True, causal=True),
    Case((1, 40, 1, 16, 16), BF16, layout="heads first"),
    Case((1, 30, 2, 5, 17), FP16, causal=True, size=4, lengths=[27], layout="dim first"),
    Case((1, 66, 1, 34, 20), BF16, rounds=1, size=16, layout="heads first", tile=32),
    Case((1, 40, 1, 4, 4), size=8, scale=1e4),  # beyond the score of a frame with itself
    *(Case(shape) for shape in ((0, 5, 2, 4, 4), (2, 0, 1, 4, 4))),
]

SMALL = [  # together they pass every barrier where it matters
    Case((1, 19, 1, 9, 9), size=1, lengths=[18]),
    Case((1, 34, 1, 3, 3), BF16, rounds=1, tile=32),  # blocks of two warps
    Case((1, 5, 1, 2, 2), rounds=9, size=2),
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
        ("lsh_hash.cuh", "t < p.time; t += threads) order[t]", "t <= p.time; t += threads) order[t]"),
        ("lsh_attention.cuh", "i < n ? order[i]", "i <= n ? order[i]"),
    ],
    ids=lambda fault: fault[0],
)
def test_an_index_off_by_one_is_seen(emulation, tmp_path, fault):
    emulation.check_fault(tmp_path, fault, [*SMALL, *CASES])
