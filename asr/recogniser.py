"""A trained experiment as an object that turns sound into tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.audio import Audio, fbank, num_frames
from asr.audio.cmvn import Cmvn
from asr.ctc.greedy import Token, greedy_decode
from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.errors import AudioError, DataError
from asr.recipe import Recipe
from asr.recipe_changes import changes
from asr.recipe_loader import recipe_from_dict
from asr.recipe_options import with_options
from asr.train.checkpoint import decodable, load_checkpoint

SHOWN = 3  # parameters that an error names, of those that do not fit


class TokenSpan(NamedTuple):
    """A decoded symbol, the seconds over which it was the likeliest, and its best log-probability."""

    symbol: str
    start_seconds: float
    end_seconds: float
    log_prob: float


@dataclass(frozen=True)
class Hypothesis:
    """What was heard in one recording. `log_prob`: natural log of the best path's probability."""

    text: str
    tokens: list[TokenSpan]
    log_prob: float


class Recogniser:
    """Model, token table and normalisation of one experiment.

    Attributes:
        sample_rate: Hz of the audio that `transcribe` expects.
        weights: what they are: `weights of epoch 7`, `average of epochs 5, 6, 8`.
        changes: what options made other than was trained, `causal: false → true`; see `asr.recipe_changes`.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokens: TokenTable,
        cmvn: Cmvn,
        model: CtcModel,
        device: torch.device,
        weights: str = "",
        changes: Sequence[str] = (),
    ) -> None:
        self.recipe, self.tokens, self.cmvn, self.device, self.weights = recipe, tokens, cmvn, device, weights
        self.changes = list(changes)
        self.model = model.to(device).eval()
        self.sample_rate = recipe.features.sample_rate

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", options: Sequence[str] = ()) -> Recogniser:
        """From an experiment folder (its averaged.pt, else its best.pt) or a checkpoint file.

        Args:
            options: what the model should do otherwise than it was trained, such as `attention.rounds=8`; see
                `asr.recipe_options`.

        Raises:
            DataError: there is no checkpoint, it is damaged, or its weights do not fit the options.
            RecipeError: the options are none of the model's.
        """
        path = decodable(Path(path))
        saved = load_checkpoint(path)
        trained = recipe = recipe_from_dict(saved["recipe"], str(path))
        tokens = TokenTable.from_state(saved["tokens"])
        if options:
            recipe = with_options(trained, options, str(path))
        model = CtcModel(recipe.model, recipe.features.dim, len(tokens))
        if options and (misfits := _misfits(model, saved["model"])):
            shown = "; ".join(misfits[:SHOWN]) + (f"; and {len(misfits) - SHOWN} more" if len(misfits) > SHOWN else "")
            raise DataError(f"{path}: {' '.join(options)} needs other weights than were trained: {shown}")
        model.load_state_dict(saved["model"])
        cmvn, weights = Cmvn.from_state(saved["cmvn"]), saved.get("weights", path.name)
        return cls(recipe, tokens, cmvn, model, torch.device(device), weights, changes(trained.model, recipe.model))

    def features(self, audio: Audio) -> Tensor:
        """Normalised features, (frames, dim); no frames for audio shorter than one analysis window.

        Raises:
            AudioError: the audio is at another rate than the model's.
        """
        config = self.recipe.features
        if audio.rate != self.sample_rate:
            raise AudioError(
                f"audio at {audio.rate} Hz, but the model was trained at {self.sample_rate} Hz; resample it"
            )
        if num_frames(len(audio.samples), config) == 0:
            return torch.zeros(0, config.dim)
        return self.cmvn.apply(fbank(audio.samples, config))

    @torch.inference_mode()
    def log_probs(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Normalised features of some utterances → (batch, time, tokens) natural log, (batch,) encoder frames."""
        lengths = torch.tensor([len(f) for f in features], device=self.device)
        return self.model(pad_sequence(list(features), batch_first=True).to(self.device), lengths)

    def transcribe(self, audios: Sequence[Audio]) -> list[Hypothesis]:
        """Decode recordings together, at `sample_rate`; one too short for a single frame gives an empty text."""
        features = [self.features(audio) for audio in audios]
        if not any(len(f) for f in features):
            return [Hypothesis("", [], 0.0) for _ in features]
        log_probs, lengths = self.log_probs(features)
        best = log_probs.max(-1).values
        return [
            self._hypothesis(tokens, len(f), float(row[: int(n)].sum()))
            for tokens, f, n, row in zip(
                greedy_decode(log_probs, lengths, self.tokens.blank), features, lengths, best, strict=True
            )
        ]

    def spans(self, tokens: Sequence[Token], frames: int) -> list[TokenSpan]:
        """Tokens of greedy decoding with their seconds, in an utterance of so many feature frames."""
        hop = self.recipe.features.hop_ms / 1000
        step, end = hop * self.model.frontend.factor, hop * frames
        symbols = self.tokens.symbols_of(t.id for t in tokens)
        return [
            TokenSpan(s, t.start * step, min(t.end * step, end), t.log_prob)
            for s, t in zip(symbols, tokens, strict=True)
        ]

    def _hypothesis(self, tokens: list[Token], frames: int, log_prob: float) -> Hypothesis:
        text = self.tokens.text_of(t.id for t in tokens)
        return Hypothesis(text, self.spans(tokens, frames), log_prob)


def _misfits(model: CtcModel, weights: Mapping[str, Tensor]) -> list[str]:
    """Parameters that are missing, left over or of another shape, those of all blocks in one."""
    own = model.state_dict()
    needed = model.load_state_dict({}, strict=False).missing_keys  # random features, for one, the model can draw
    wanted = {name: tuple(own[name].shape) for name in needed}
    there = {name: tuple(tensor.shape) for name, tensor in weights.items() if name in wanted or name not in own}
    found = {}
    for name in dict.fromkeys([*wanted, *there]):
        if wanted.get(name) != there.get(name):
            shapes = f"is {there.get(name, 'not there')}, has to be {wanted.get(name, 'absent')}"
            found[re.sub(r"blocks\.\d+", "blocks.*", name)] = shapes
    return [f"{name} {shapes}" for name, shapes in found.items()]
