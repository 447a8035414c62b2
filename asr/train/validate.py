"""A model over a whole set without learning: loss, PER and the signs of a collapse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch

from asr.ctc.alignment import error_counts
from asr.ctc.greedy import greedy_decode
from asr.ctc.loss import ctc_loss_sum
from asr.data.feasible import required_frames
from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.train.sets import LoadedSet


@dataclass
class Validation:
    """Totals over a set; the rates follow from them."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference_tokens: int = 0
    emitted_tokens: int = 0
    frames: int = 0  # encoder frames
    blank_frames: int = 0
    loss_sum: float = 0.0  # over utterances whose target fits into their frames
    loss_tokens: int = 0
    not_finite: list[str] = field(default_factory=list)  # utterances for which the model gave no numbers

    @property
    def per(self) -> float:
        """Token errors in percent of the reference tokens; NaN for a set without any, or a model that gives NaN."""
        if self.not_finite:
            return float("nan")
        errors = self.substitutions + self.deletions + self.insertions
        return 100 * errors / self.reference_tokens if self.reference_tokens else float("nan")

    @property
    def loss(self) -> float:
        """Nats per reference token."""
        return self.loss_sum / max(1, self.loss_tokens)

    @property
    def blank_share(self) -> float:
        """Share of encoder frames whose likeliest token is the blank; 1 means the model says nothing."""
        return self.blank_frames / max(1, self.frames)

    @property
    def length_ratio(self) -> float:
        """Emitted over reference tokens."""
        return self.emitted_tokens / max(1, self.reference_tokens)


@torch.inference_mode()
def validate(
    model: CtcModel,
    data: LoadedSet,
    batch_frames: int,
    device: torch.device,
    tokens: TokenTable,
    stop: Callable[[], bool] = lambda: False,
    share: tuple[int, int] = (0, 1),
) -> Validation:
    """Greedy decoding of every utterance of the set.

    Args:
        stop: asked between batches; ends the pass early.
        share: (rank, size): of so many processes this one takes its share of the batches. `merged` adds them up.
    """
    was_training = model.training
    model.eval()
    result = Validation()
    rank, size = share
    for rows in data.batches_by_length(batch_frames)[rank::size]:
        if stop():
            break
        batch = data.batch(rows).to(device)
        log_probs, lengths = model(batch.features, batch.lengths)
        lengths = lengths.cpu()  # once, not at every utterance below
        fits = [i for i, t in enumerate(batch.targets) if required_frames(t) <= int(lengths[i])]
        targets = [batch.targets[i] for i in fits]
        result.loss_sum += float(ctc_loss_sum(log_probs[fits], lengths[fits], targets, tokens.blank))
        result.loss_tokens += sum(map(len, targets))
        best = log_probs.argmax(-1).cpu()
        nan = log_probs.isnan().any(-1).cpu()
        result.not_finite += [id for i, id in enumerate(batch.ids) if nan[i, : int(lengths[i])].any()]
        for i, decoded in enumerate(greedy_decode(log_probs, lengths, tokens.blank)):
            counts = error_counts(batch.targets[i], [t.id for t in decoded], unmatchable=tokens.unk)
            result.substitutions += counts.substitutions
            result.deletions += counts.deletions
            result.insertions += counts.insertions
            result.reference_tokens += len(batch.targets[i])
            result.emitted_tokens += len(decoded)
            result.frames += int(lengths[i])
            result.blank_frames += int((best[i, : int(lengths[i])] == tokens.blank).sum())
    model.train(was_training)
    return result


def merged(parts: list[Validation]) -> Validation:
    """The totals over several parts of one set."""
    total = Validation()
    for part in parts:
        for each in fields(Validation):
            setattr(total, each.name, getattr(total, each.name) + getattr(part, each.name))
    return total
