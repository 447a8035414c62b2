"""Milliseconds of each op on a GPU beside PyTorch's softmax attention: forward, and forward with backward."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from asr.kernels import causal_linear_attention, linear_attention, lsh_attention, rotary_table

HEADS, ROUNDS, BUCKET = 8, 4, 32
SIZES = ((64, 512), (16, 2048), (4, 8192))  # batch, time
Op = Callable[[Tensor, Tensor, Tensor], Tensor]


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def both(op: Op, q: Tensor, k: Tensor, v: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        forward = milliseconds(lambda: op(q, k, v))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    dout = torch.randn_like(v)
    return forward, milliseconds(lambda: torch.autograd.grad(op(*leaves), leaves, dout, allow_unused=True))


def softmax(causal: bool) -> Op:
    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal).transpose(1, 2)

    return op


def main() -> None:
    device = torch.device("cuda")
    lines = [f"{'dtype':>9} {'dim':>4} {'batch':>6} {'time':>6}  " + "  ".join(f"{name:>19}" for name in NAMES)]
    for dtype in (torch.float32, torch.bfloat16):
        for dim in (32, 64):
            for batch, time in SIZES:
                q, k, v = (torch.randn(batch, time, HEADS, dim, device=device, dtype=dtype) for _ in range(3))
                lengths = torch.full((batch,), time, device=device)
                rotation = torch.randn(ROUNDS, dim, min(1024, time // (2 * BUCKET)), device=device)
                table, decay = rotary_table(time, dim, device=device), torch.full((HEADS,), 0.99, device=device)
                ops: tuple[Op, ...] = (
                    lambda q, k, v: linear_attention(q, k, v, lengths),  # noqa: B023
                    lambda q, k, v: linear_attention(q, k, v, lengths, table),  # noqa: B023
                    lambda q, k, v: causal_linear_attention(q, k, v, lengths).out,  # noqa: B023
                    lambda q, k, v: causal_linear_attention(q, k, v, lengths, None, decay).out,  # noqa: B023
                    lambda q, k, v: lsh_attention(q, v, lengths, rotation, BUCKET),  # noqa: B023
                    softmax(False),
                    softmax(True),
                )
                cells = ["{:8.3f} / {:8.3f}".format(*both(op, q, k, v)) for op in ops]
                name = str(dtype).removeprefix("torch.")
                lines.append(f"{name:>9} {dim:4} {batch:6} {time:6}  " + "  ".join(cells))
    print(f"{torch.cuda.get_device_name()}, {HEADS} heads; ms forward / forward and backward, medians")
    print("\n".join(lines))


NAMES = ("linear", "linear rotary", "causal", "causal decay", "LSH-4", "softmax", "softmax causal")

if __name__ == "__main__":
    main()
