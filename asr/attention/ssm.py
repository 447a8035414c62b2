"""State space models as mixers: each channel remembers the past in a linear recurrence with a diagonal matrix.

    z_t = Ā z_{t-1} + B̄ u_t      o_t = Re(C z_t) + D u_t      y_t = W_o (o_t ⊙ silu(g_t))

u and the gate g are projections of the frame; u first passes a causal depth-wise convolution over a few frames and
SiLU. This shell is that of Gu, Dao, "Mamba", 2023, section 3.4, as wide as the model (E = 1). What is inside:

- `asr.attention.diagonal` (S4D): Ā, B̄, C are constants, so that training is one convolution, done by FFT;
- `asr.attention.selective` (S6, `selective: true`): Ā, B̄ and C depend on the frame, so that training is a scan.

State: dim · (state + convolution − 1) floats, whatever the length.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from asr.attention.diagonal import DiagonalSsm
from asr.attention.directions import DirectionalConfig
from asr.attention.masks import zero_padding
from asr.attention.mixer import Mixer
from asr.attention.selective import SelectiveSsm
from asr.kernels.features import wide


class SsmConfig(DirectionalConfig):
    """`attention: {kind: ssm}` in a recipe."""

    computing: ClassVar[frozenset[str]] = frozenset({"chunk"})

    kind: Literal["ssm"] = "ssm"
    selective: bool = False  # Ā, B̄ and C depend on the frame (Mamba); else they are constants (S4D)
    state: int = Field(16, ge=1)  # numbers a channel remembers, as in Mamba; S4D's paper has 64
    init: Literal["lin", "inv"] = "lin"  # S4D-Lin or S4D-Inv; selective: true always has the real −1 … −state
    discretisation: Literal["zoh", "bilinear"] = "zoh"
    dt_min: float = Field(1e-3, gt=0)  # a frame's duration, drawn for each channel between these, evenly in the log;
    dt_max: float = Field(1e-1, gt=0, le=100)  # 1 / dt is how many frames a channel remembers at first
    convolution: int = Field(4, ge=0)  # frames of the depth-wise convolution before it; 0: none
    chunk: int = Field(64, ge=1)  # selective: frames scanned at once; the result does not depend on it

    @model_validator(mode="after")
    def _check(self) -> SsmConfig:
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min {self.dt_min:g} is above dt_max {self.dt_max:g}")
        if not self.selective and self.state % 2:
            raise ValueError(f"state {self.state} is odd: the eigenvalues come in conjugate pairs")
        if self.selective and (self.init, self.discretisation) != ("lin", "zoh"):
            raise ValueError("selective: true has its own init and discretisation; leave both out")
        if not self.selective:
            self.leave_out("chunk", "selective: false is a convolution over all frames, not a scan")
        return self

    def build_causal(self, dim: int, heads: int, rotary: bool) -> Ssm:
        core: SelectiveSsm | DiagonalSsm
        if self.selective:
            core = SelectiveSsm(dim, self.state, self.dt_min, self.dt_max, self.chunk)
        else:
            core = DiagonalSsm(dim, self.state, self.init, self.discretisation, self.dt_min, self.dt_max)
        return Ssm(dim, core, self.convolution)


class SsmState(NamedTuple):
    """What a layer remembers, at least float32: `z` of its core (batch, dim, …; complex for S4D), and the last
    frames that its convolution still sees, `recent` (batch, convolution − 1, dim)."""

    z: Tensor
    recent: Tensor


class Ssm(Mixer):
    """A causal state space model between gated projections, over padded batches.

    Args:
        dim: model width, the number of channels.
        core: maps (batch, time, dim) to the same; its `step` also takes and gives the state.
        convolution: frames of the depth-wise convolution before the core; 0 leaves it and its SiLU out.

    Example:
        >>> layer = SsmConfig(causal=True).build(dim=192, heads=6)
        >>> layer(torch.randn(2, 50, 192), torch.tensor([50, 31])).shape
        torch.Size([2, 50, 192])
    """

    causal = streams = True

    def __init__(self, dim: int, core: SelectiveSsm | DiagonalSsm, convolution: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, 2 * dim)
        self.taps = self.bias = None
        if convolution:
            self.taps = nn.Parameter(torch.empty(convolution, dim).uniform_(-1, 1) * convolution**-0.5)
            self.bias = nn.Parameter(torch.zeros(dim))
        self.core = core
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Padding comes last, so no real frame ever sees it."""
        if not x.numel():
            return x
        u, gate, _ = self._inputs(zero_padding(x, lengths), self._no_frames(x.shape[0]))
        return self._out(self.core(u), gate)

    def initial_state(self, batch: int) -> SsmState:
        return SsmState(self.core.initial_state(batch), self._no_frames(batch))

    def step(self, x: Tensor, state: SsmState) -> tuple[Tensor, SsmState]:
        if not x.numel():
            return x, state
        u, gate, recent = self._inputs(x, state.recent)
        y, z = self.core.step(u, state.z)
        return self._out(y, gate), SsmState(z, recent)

    def _no_frames(self, batch: int) -> Tensor:
        (weight,) = wide(self.project.weight)
        return weight.new_zeros(batch, 0 if self.taps is None else len(self.taps) - 1, weight.shape[1])

    def _inputs(self, x: Tensor, recent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, dim) → what the core gets, the gate, and the frames that the next convolution will see."""
        u, gate = self.project(x).chunk(2, dim=-1)
        u = u.to(recent.dtype)
        if self.taps is not None:
            frames = torch.cat([recent, u], dim=1)
            recent = frames[:, x.shape[1] :].clone()  # a view would hold on to the whole piece
            # As sums of shifted frames: torch's depth-wise convolutions are several times slower on CPUs.
            mixed = sum(tap * frames[:, i : i + x.shape[1]] for i, tap in enumerate(self.taps))
            u = F.silu(mixed + self.bias)
        return u, gate, recent

    def _out(self, y: Tensor, gate: Tensor) -> Tensor:
        return self.output((y * F.silu(gate)).to(self.output.weight.dtype))
