"""Feature maps and rotary positions as the ops use them, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def elu_plus_one(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1, written so that it neither underflows to 0 below -17 nor costs a slow elu.

    The slope at 0 is 1: `relu` has none there in any version of torch, whereas `clamp` had one in some.
    """
    return torch.exp(-(-x).relu()) + F.threshold(x, -torch.finfo(torch.float32).tiny, 0.0)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_plus_one,  # Katharopoulos et al., equation 7
    "relu": torch.relu,
    "identity": lambda x: x,
}


def rotary_table(
    time: int, dim: int, start: int = 0, base: float = 10000.0, device: torch.device | None = None
) -> Tensor:
    """(time, dim) float32: for each frame the cosines of its dim/2 angles, then the sines.

    The angle of pair i at frame t is (start + t) · base^(−2i/dim). Su et al., "RoFormer", 2021, equation 15. Angles are
    computed in float64: in float32 they are 0.02 rad wrong after an hour of 10 ms frames.

    Raises:
        ValueError: dim is odd.
    """
    if dim % 2:
        raise ValueError(f"rotary positions need an even width, got {dim}")
    rate = base ** (-torch.arange(dim // 2, device=device, dtype=torch.float64) / (dim // 2))
    angle = torch.arange(start, start + time, device=device, dtype=torch.float64)[:, None] * rate
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def turn(x: Tensor, table: Tensor | None) -> Tensor:
    """x (…, time, heads, dim) with each pair (x_i, x_{i + dim/2}) turned by its frame's angle; None leaves x."""
    if table is None:
        return x
    a, b = x.chunk(2, dim=-1)
    cos, sin = table.to(x.dtype)[: x.shape[-3], None].chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def check(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, feature_map: str = "elu") -> None:
    """Raises ValueError naming the argument that has the wrong shape, and what it must be."""
    if q.dim() != 4 or k.shape != q.shape:
        raise ValueError(f"q and k must be (batch, time, heads, dim), got {tuple(q.shape)} and {tuple(k.shape)}")
    if v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        raise ValueError(f"v must be {tuple(q.shape[:3])} and a width, got {tuple(v.shape)}")
    if lengths.shape != q.shape[:1] or lengths.is_floating_point():
        raise ValueError(f"lengths must be {q.shape[0]} integers, got {lengths.dtype} {tuple(lengths.shape)}")
    if table is not None and (table.dim() != 2 or table.shape[0] < q.shape[1] or table.shape[1] != q.shape[3]):
        raise ValueError(f"table must be ({q.shape[1]}, {q.shape[3]}), got {tuple(table.shape)}")
    if feature_map not in FEATURE_MAPS:
        raise ValueError(f"feature_map must be one of {', '.join(FEATURE_MAPS)}, got {feature_map!r}")


def common(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the widest of their dtypes: the ops take one."""
    dtype = tensors[0].dtype
    if all(tensor.dtype == dtype for tensor in tensors):  # a conversion that does nothing takes longer to find that out
        return list(tensors)
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def hide_padding(lengths: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Tensors (batch, time, heads, dim) with 0 at and past the length of a row, whatever stood there, NaN too.

    Where no row is shorter they come back as they are, but only on a CPU: a GPU would have to be waited for to know
    that, and a traced graph must serve both.
    """
    time = tensors[0].shape[1]
    if tensors[0].device.type == "cpu" and not torch.compiler.is_compiling() and bool((lengths >= time).all()):
        return list(tensors)
    padding = (torch.arange(time, device=tensors[0].device) >= lengths[:, None])[..., None, None]
    return [tensor.masked_fill(padding, 0.0) for tensor in tensors]


def wide(*tensors: Tensor) -> list[Tensor]:
    """The tensors in at least float32: sums over time need the digits."""
    return [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
