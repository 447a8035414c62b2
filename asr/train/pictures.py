"""What TensorBoard shows of a training beside curves: how it hears some utterances of the dev set, the same each time.

For each of them the alignment of hypothesis and reference as text, spectrogram and CTC output, and the attention map of
one layer where that is exact (asr.report.inspect.implied): what else has a map only by its Jacobian is left to
`asr inspect`, since that may take minutes. Nothing of it touches the training: its draws are put back, its time is no
part of an epoch's, peak memory starts anew, and what fails is said once and left out from then on.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch

from asr.train.board import Board
from asr.train.config import PicturesConfig
from asr.train.measure import reset_peak_memory

if TYPE_CHECKING:
    from asr.train.sets import LoadedSet
    from asr.train.state import State

SHARE = 1 / 50  # of the training's time, for pictures as often as it allows
SECONDS = 15.0  # an utterance that is longer is not drawn, where there is a shorter one
DPI = 80

log = logging.getLogger("asr")


class Pictures:
    def __init__(self, config: PicturesConfig, board: Board) -> None:
        self._config, self._board = config, board
        self._spent = 0.0
        self._failed = False

    def after_validation(self, state: State) -> float | None:
        """Draw, if it is due; the seconds that it took."""
        if self._failed or not self._due(state):
            return None
        began = time.perf_counter()
        try:
            self._draw(state)
        except Exception as error:  # out of memory, a full disk, a font: no training ends for a picture
            self._failed = True
            log.warning("no more pictures for TensorBoard from here, drawing them failed: %r", error)
        reset_peak_memory(state.device)  # the epoch's is written down already
        self._spent += (seconds := time.perf_counter() - began)
        return seconds

    def _due(self, state: State) -> bool:
        """After the first validation, the last, and every so often between them."""
        counters, training = state.counters, state.recipe.training
        if state.end() is not None:
            return True
        if self._config.every is None:
            return self._spent <= SHARE * counters.elapsed
        return (counters.epoch // training.validate_every - 1) % self._config.every == 0

    def _draw(self, state: State) -> None:
        from asr.report.inspect.glimpse import glimpses  # draws, so it needs more than a training does

        layer = self._config.layer or (state.recipe.model.encoder.depth + 1) // 2
        rows = chosen(state.dev, self._config.utterances, state.recipe.features.hop_ms)
        epoch, training = state.counters.epoch, state.model.training
        devices = [state.device] if state.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), state.decoding_weights():
                for one in glimpses(state.recipe, state.tokens, state.model, state.device, state.dev, rows, layer):
                    self._board.text(f"{one.name}/text", one.text, epoch)
                    for name, figure in one.figures.items():
                        self._board.picture(f"{one.name}/{name}", figure(DPI), epoch)
        finally:
            state.model.train(training)
        self._board.flush()


def chosen(data: LoadedSet, count: int, hop_ms: float) -> list[int]:
    """Rows of the set's first utterances with tokens that are not too long; the shortest where all of them are."""
    spoken = [row for row, target in enumerate(data.targets) if target]
    short = [row for row in spoken if data.frames[row] * hop_ms / 1000 <= SECONDS]
    return short[:count] or [min(spoken, key=lambda row: data.frames[row])]
