"""CTC loss with one normalisation, stated once.

-ln p(target | features), summed over all alignments: Graves et al., "Connectionist Temporal Classification", ICML
2006. Computed by torch, at least in float32. The toolkit's loss is the sum over utterances divided by the number of
reference tokens in the whole group of batches that makes one optimiser step: nats per reference token. It is therefore
the same for one batch, for the same utterances in several accumulated batches, and for any batch size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.data.feasible import required_frames
from asr.upload import upload


def ctc_losses(log_probs: Tensor, lengths: Tensor, targets: list[list[int]], blank: int = 0) -> Tensor:
    """-ln p(target) of each row, nats: (batch,).

    An empty target costs minus the sum of log p(blank). Divide the sum by `reference_tokens` of the group for the loss.

    Args:
        log_probs: (batch, time, tokens), natural log.
        lengths: (batch,) real frames of each row; on the host, where they are looked at.
        targets: token ids of each row, without blank.

    Raises:
        ValueError: a target holds the blank or an id outside the table, or needs more frames than its row has (such
            utterances are filtered before training, where their ids are known).
    """
    tokens, lengths = log_probs.shape[-1], lengths.cpu()
    for row, (target, frames) in enumerate(zip(targets, lengths.tolist(), strict=True)):
        if any(not 0 <= t < tokens or t == blank for t in target):
            raise ValueError(f"row {row}: target ids must lie in 0..{tokens - 1} and differ from the blank id {blank}")
        if frames < required_frames(target):
            raise ValueError(f"row {row}: {required_frames(target)} frames needed for its target, {frames} given")
    if not log_probs.numel():  # torch refuses it
        return log_probs.sum((1, 2)) * 0.0
    log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
    flat = upload(torch.tensor([t for target in targets for t in target], dtype=torch.long), log_probs.device)
    sizes = torch.tensor([len(t) for t in targets], dtype=torch.long)
    return F.ctc_loss(log_probs.transpose(0, 1), flat, lengths, sizes, blank, reduction="none")


def ctc_loss_sum(log_probs: Tensor, lengths: Tensor, targets: list[list[int]], blank: int = 0) -> Tensor:
    """The sum of `ctc_losses` over the batch."""
    return ctc_losses(log_probs, lengths, targets, blank).sum()


def reference_tokens(targets: list[list[int]]) -> int:
    """The divisor of the loss: tokens in all targets, at least 1 so that a group of empty ones has a loss too."""
    return max(1, sum(map(len, targets)))
