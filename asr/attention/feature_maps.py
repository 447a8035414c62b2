"""Feature maps φ of linear attention, sim(q, k) = φ(q)ᵀ φ(k): a recipe's `feature_map` and the modules behind it.

| kind | φ(x) | features of a head of width D | source |
|---|---|---|---|
| elu | elu(x) + 1 | D | Katharopoulos et al., "Transformers are RNNs", 2020, equation 7 |
| relu | max(x, 0) | D | Kasai et al., "Finetuning Pretrained Transformers into RNNs", 2021 |
| identity | x | D | needs `normaliser: output`: its similarity may be negative |
| exp | eˣ | D | hedgehog's beginning, unlearned |
| square | x_i x_j, i ≤ j: φ(q)ᵀφ(k) = (qᵀk)² / D | D (D + 1) / 2 | Katharopoulos et al., section 3.2 |
| favor | exp(wᵀx̂ − ‖x̂‖² / 2) / √size, x̂ = x / D^¼ | size | Choromanski et al., "Performers", 2021 |
| hedgehog | softmax [y, −y], y = Wx + b, learned | 2 D | Zhang et al., "The Hedgehog & the Porcupine", 2024 |

The D² products of square come in equal pairs: one of each, weighted by √2, gives the same similarity at half the cost.
Work and state grow with the number of features: square is worth it only where N > D².
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asr.config import Config
from asr.kernels.features import wide


class FeatureMap(nn.Module):
    """Maps queries and keys, (batch, time, heads, D) each, to two of (batch, time, heads, size).

    Args:
        size: features of a head.
        op: what the attention op still has to apply: a key of `asr.kernels.FEATURE_MAPS`.
        logarithmic: the result is ln φ, for `asr.attention.exponential`.
    """

    def __init__(self, size: int, op: str = "identity", logarithmic: bool = False) -> None:
        super().__init__()
        self.size, self.op, self.logarithmic = size, op, logarithmic

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class FixedMapConfig(Config):
    """Maps without options."""

    kind: Literal["elu", "relu", "identity", "exp", "square"] = "elu"

    def build(self, dim: int, heads: int) -> FeatureMap:
        """For heads of width `dim`."""
        if self.kind == "square":
            return Square(dim)
        if self.kind == "exp":
            return FeatureMap(dim, logarithmic=True)
        return FeatureMap(dim, op=self.kind)


class FavorConfig(Config):
    """`feature_map: {kind: favor}`: the Performer's unbiased estimate of exp(qᵀk / √D)."""

    kind: Literal["favor"] = "favor"
    size: int = Field(128, ge=1)  # random features; the error falls as 1 / √size
    redraw: int = Field(1000, ge=0)  # training batches after which the directions are drawn anew; 0: never
    seed: int = Field(0, ge=0, lt=2**32)  # of the directions

    def build(self, dim: int, heads: int) -> FeatureMap:
        return Favor(dim, self.size, self.redraw, self.seed)


class HedgehogConfig(Config):
    """`feature_map: {kind: hedgehog}`: learned, one map for the queries and one for the keys of every head."""

    kind: Literal["hedgehog"] = "hedgehog"

    def build(self, dim: int, heads: int) -> FeatureMap:
        return Hedgehog(dim, heads)


FeatureMapConfig = Annotated[FixedMapConfig | FavorConfig | HedgehogConfig, Field(discriminator="kind")]


class Square(FeatureMap):
    """The products of all pairs of columns, each pair once and weighted by √2.

    Columns are chosen by products with rows of the unit matrix, whose gradients, unlike those of indexing, are products
    too: fast, and the same at every run.
    """

    left: Tensor
    right: Tensor

    def __init__(self, dim: int) -> None:
        i, j = torch.triu_indices(dim, dim)
        super().__init__(len(i))
        self.register_buffer("left", torch.eye(dim)[:, i], persistent=False)
        self.register_buffer("right", torch.eye(dim)[:, j], persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            q, k = wide(q, k)
            left, right = self.left.to(q.dtype), self.right.to(q.dtype)
            weight = ((2.0 - (left * right).sum(0)) / len(left)).sqrt()
            return (q @ left) * (q @ right) * weight, (k @ left) * (k @ right) * weight


class Favor(FeatureMap):
    """Positive orthogonal random features (FAVOR+), as logarithms.

    The directions, their seed and the number of batches seen in training, by which they are redrawn, are saved with the
    weights. A draw depends on seed and number alone: a resumed run, and every process of one, draws the same. Weights
    without directions, such as those of softmax attention, or with those of another size or seed, take the ones drawn
    here.
    """

    directions: Tensor

    def __init__(self, dim: int, size: int, redraw: int = 0, seed: int = 0) -> None:
        super().__init__(size, logarithmic=True)
        self.redraw, self.seed, self.batches = redraw, seed, 0
        self.register_buffer("directions", orthogonal_directions(size, dim, seed))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            if self.redraw and self.batches and self.batches % self.redraw == 0:
                size, dim = self.directions.shape
                self.directions = orthogonal_directions(size, dim, self.seed + self.batches).to(self.directions)
            self.batches += 1
        with torch.autocast(q.device.type, enabled=False):
            q, k = wide(q, k)
            return self._log_features(q), self._log_features(k)

    def _log_features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return x @ self.directions.mT.to(x.dtype) - (x.square().sum(-1, keepdim=True) + math.log(self.size)) / 2

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.batches, self.seed])

    def set_extra_state(self, state: Tensor) -> None:
        self.batches = int(state.flatten()[0])  # earlier versions saved nothing else

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved, state = state_dict.get(prefix + "directions"), state_dict.get(prefix + "_extra_state")
        another_seed = state is not None and state.numel() > 1 and int(state[1]) != self.seed
        if saved is None or saved.shape != self.directions.shape or another_seed:
            state_dict[prefix + "directions"] = self.directions
            state_dict[prefix + "_extra_state"] = self.get_extra_state()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def orthogonal_directions(size: int, dim: int, seed: int) -> Tensor:
    """(size, dim) Gaussian directions, orthogonal within each block of `dim` rows; lengths as of independent ones.

    Choromanski et al. 2021, section 3.3: the estimate stays unbiased and varies less.
    """
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(-(-size // dim), dim, dim, generator=generator))
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(0, 1)[:size]
    return rows * torch.randn(size, dim, generator=generator).norm(dim=1, keepdim=True)


class Hedgehog(FeatureMap):
    """Learned features that can imitate the spiky weights of softmax; they start as softmax [x, −x]."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(2 * dim)
        self.weight = nn.Parameter(torch.eye(dim).repeat(2, heads, 1, 1))  # of the queries, of the keys
        self.bias = nn.Parameter(torch.zeros(2, heads, dim))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            y = torch.einsum("sbthd,shed->sbthe", torch.stack(wide(q, k)), self.weight) + self.bias[:, None, None]
            q, k = torch.cat([y, -y], dim=-1).softmax(-1)
            return q, k
