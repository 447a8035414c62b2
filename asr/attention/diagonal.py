"""S4D: the diagonal state space model with constant matrices, as a convolution and as a recurrence.

    z_t = Ā z_{t-1} + B̄ u_t      o_t = 2 Re Σ_n C_n z_{t,n} + D u_t      K_t = 2 Re Σ_n C_n Ā_nᵗ B̄_n

one system for each channel, with N complex numbers in conjugate pairs, of which only N/2 are kept (hence 2 Re).
B is 1, since only C·B counts. Gu, Gupta, Goel, Ré, "On the Parameterization and Initialization of Diagonal State Space
Models", 2022: section 3 and its initialisations S4D-Lin and S4D-Inv (equations 8 and 9).

From continuous time, with dt a frame's duration: `zoh` Ā = exp(dt·A), B̄ = (Ā − 1) / A, as if u held still for a frame;
`bilinear` Ā = (1 + dt·A/2) / (1 − dt·A/2), B̄ = dt / (1 − dt·A/2), the trapezoidal rule. |Ā| < 1 in both.

Cost O(T log T) per channel by FFT, and O(N·T) for the kernel K, which does not depend on the batch.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from asr.kernels.features import wide


class DiagonalSsm(nn.Module):
    """(batch, time, channels) → the same, at least float32, also under autocast.

    Args:
        channels: independent systems.
        state: N, even.
        init: "lin" has A_n = −1/2 + iπn, "inv" has A_n = −1/2 + i N/π (N / (2n + 1) − 1).
        discretisation: "zoh" or "bilinear".
        dt_min, dt_max: dt is drawn for each channel between them, log-uniformly.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("log_rate", "frequency")  # weight decay would change what is remembered

    def __init__(self, channels: int, state: int, init: str, discretisation: str, dt_min: float, dt_max: float) -> None:
        super().__init__()
        self.bilinear = discretisation == "bilinear"
        n = torch.arange(state // 2)
        frequency = math.pi * n if init == "lin" else state / math.pi * (state / (2 * n + 1) - 1)
        self.log_dt = nn.Parameter(log_uniform(channels, dt_min, dt_max))
        self.log_rate = nn.Parameter(torch.full((channels, state // 2), math.log(0.5)))  # A = −exp(log_rate) + i ·
        self.frequency = nn.Parameter(frequency.repeat(channels, 1))  # ...frequency, so that it never grows
        self.c = nn.Parameter(torch.randn(channels, state // 2, 2) * 0.5**0.5)  # real and imaginary parts
        self.skip = nn.Parameter(torch.ones(channels))  # D

    def forward(self, u: Tensor) -> Tensor:
        with torch.autocast(u.device.type, enabled=False):
            (u,) = wide(u)
            log_a, b, c = self.discrete()
            return convolve(u, response(log_a, c * b, u.shape[1])) + self.skip * u

    def initial_state(self, batch: int) -> Tensor:
        """(batch, channels, state / 2) complex."""
        (rate,) = wide(self.log_rate)
        return torch.zeros(batch, *rate.shape, dtype=rate.dtype.to_complex(), device=rate.device)

    def step(self, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """The next frames and the state before them → their outputs and the state after them.

        The convolution of the new frames, and what the state alone would still give. Memory: channels · N · time.
        """
        with torch.autocast(u.device.type, enabled=False):
            (u,) = wide(u)
            time = u.shape[1]
            log_a, b, c = self.discrete()
            kernel = response(log_a, c * b, time)
            y = convolve(u, kernel) + self.skip * u + response(log_a, c * log_a.exp() * z, time).mT
            faded = powers(log_a, torch.arange(time - 1, -1, -1, device=u.device))  # (channels, N/2, time)
            real, imag = (u.permute(2, 0, 1) @ torch.cat([faded.real, faded.imag], dim=1).mT).chunk(2, dim=-1)
            return y, (log_a * time).exp() * z + b * torch.complex(real, imag).transpose(0, 1)

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """ln Ā, B̄ and C, (channels, N/2) complex each."""
        log_dt, log_rate, frequency, c = wide(self.log_dt, self.log_rate, self.frequency, self.c)
        dt = log_dt.exp()[:, None]
        a = torch.complex(-log_rate.exp(), frequency)
        if self.bilinear:
            half = a * dt / 2
            return 2 * half.atanh(), dt / (1 - half), torch.view_as_complex(c)
        return a * dt, (a * dt).expm1() / a, torch.view_as_complex(c)


def log_uniform(count: int, low: float, high: float) -> Tensor:
    """(count,) natural logarithms of numbers drawn between low and high."""
    return torch.empty(count).uniform_(math.log(low), math.log(high))


def response(log_a: Tensor, weight: Tensor, time: int) -> Tensor:
    """2 Re Σ_n w_n a_nᵗ for t < time: log_a (channels, N/2), weight (…, channels, N/2) → (…, channels, time).

    With t = i·m + j the powers split in two factors of √time each, and the sum over n is a product of real matrices:
    no (channels, N, time) tensor, and few complex exponentials.
    """
    m = math.isqrt(time) + 1
    fine = powers(log_a, torch.arange(m, device=log_a.device))
    coarse = weight[..., None] * powers(log_a, m * torch.arange(time // m + 1, device=log_a.device))
    left = torch.cat([coarse.real, -coarse.imag], dim=-2).mT
    return (2 * left @ torch.cat([fine.real, fine.imag], dim=-2)).flatten(-2)[..., :time]


def powers(log_a: Tensor, t: Tensor) -> Tensor:
    """aᵗ: log_a (…) complex, t (count,) → (…, count). In real functions: torch's complex exp is five times slower."""
    size, angle = (log_a.real[..., None] * t).exp(), log_a.imag[..., None] * t
    return torch.complex(size * angle.cos(), size * angle.sin())


def convolve(u: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution by FFT: u (batch, time, channels), kernel (channels, time) → as u.

    Padded to at least 2·time − 1 points, so that the end does not come round to the start; what stays of later frames
    in earlier ones is rounding, about 1e-7 of the largest value.
    """
    time = u.shape[1]
    points = min(m << (-(-(2 * time - 1) // m) - 1).bit_length() for m in (1, 3, 5))  # lengths with a fast transform
    spectrum = torch.fft.rfft(u.mT, points) * torch.fft.rfft(kernel, points)
    return torch.fft.irfft(spectrum, points)[..., :time].mT
