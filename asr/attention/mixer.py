"""What the encoder asks of every mixer, and what a mixer's config promises when the recipe is read.

A mixer maps x (batch, time, dim) and integer lengths (batch,) to the same shape, and padding never changes a result.
A `causal` one sees no later frame. One that `streams` has a state whose size does not grow: `step` takes
the next frames and the state, and feeding an utterance in pieces gives the numbers of feeding it whole. Attention in
chunks streams without being causal: its frames see to the end of their chunk, and pieces are whole chunks.

A key that has no effect beside the others of its section is refused, so that no comparison is of a model with itself.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from asr.attention.masks import zero_padding
from asr.config import Config

LONGEST = 2**16  # frames that a state may hold: 11 minutes of 10 ms frames


class MixerConfig(Config):
    """Base of every mixer's section in a recipe; the file of the mixer adds `kind` and its options."""

    turns: ClassVar[bool] = False  # can take rotary positions: has queries and keys to turn
    # Keys that say how a layer's function is computed, or how closely: with others its weights mean the same.
    computing: ClassVar[frozenset[str]] = frozenset()

    kind: str  # the mixer's name: a Literal in its own file
    causal: bool = False  # see no frame after the current one

    def check(self, dim: int, heads: int, rotary: bool) -> None:
        """Raises ValueError for what this mixer cannot do, so that the recipe is refused when it is read."""
        if dim % heads:
            raise ValueError(f"dim {dim} is not a multiple of heads {heads}")
        if rotary and self.turns and (dim // heads) % 2:
            raise ValueError(f"rotary positions need an even head width, got {dim // heads}")

    def meaning(self) -> dict[str, Any]:
        """What the weights were trained to be: equal for mixers that compute, or approximate, the same function."""
        return self.model_dump(exclude=set(self.computing))

    def leave_out(self, key: str, reason: str) -> None:
        """Raises ValueError where a key that has no effect beside the others has been set."""
        if (value := getattr(self, key)) != type(self).model_fields[key].default:
            raise ValueError(f"{key} {value} has no effect: {reason}; leave it out")

    def remember(self, key: str, frames: int) -> None:
        """Raises ValueError where `key` makes a mixer that streams remember more frames than a state may hold."""
        if frames > LONGEST:
            raise ValueError(
                f"{key} makes a stream remember {frames} frames, more than {LONGEST}; make it smaller, or leave it out "
                "to look at all frames"
            )

    def pair_bytes(self, heads: int, frames: int) -> int:
        """Bytes that one layer's matrices of frame pairs take for an utterance of so many frames; 0: it has none."""
        return 0

    def build(self, dim: int, heads: int, rotary: bool = False) -> Mixer:
        """The module; `rotary` is ignored by a mixer that has nothing to turn."""
        raise NotImplementedError


class Mixer(nn.Module):
    """Base of every mixer."""

    causal: bool = False
    streams: bool = False

    @property
    def lookahead_frames(self) -> int | None:
        """How many later frames a frame may see: the latency of a layer. None: the whole utterance."""
        return 0 if self.causal else None

    @property
    def step_frames(self) -> int:
        """Pieces given to `step` hold a multiple of this many frames; the last of an utterance may be shorter."""
        return 1

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, time, dim), (batch,) → (batch, time, dim). Frames past a row's length neither give nor receive.

        One that always streams needs no `forward` of its own: the whole is one step from the start. Padding comes after
        every real frame, so no real frame ever sees it.
        """
        return self.step(zero_padding(x, lengths), self.initial_state(x.shape[0]))[0]

    def initial_state(self, batch: int) -> Any:
        """What a streaming mixer remembers before the first frame: a NamedTuple of tensors (batch, …) and numbers."""
        raise ValueError(self._why_not())

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next frames, (batch, time, dim), any number of them → the same shape, and the state after them.

        Raises:
            ValueError: the mixer does not stream.
        """
        raise ValueError(self._why_not())

    def _why_not(self) -> str:
        return f"{type(self).__name__} cannot stream" + ("" if self.causal else "; set causal: true")
