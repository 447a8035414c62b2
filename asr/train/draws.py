"""Where randomness comes from: the draws of a step follow from its place in the training, not from what ran before."""

from __future__ import annotations

import hashlib

import torch


def seed_draws(seed: int, epoch: int, step: int, rank: int = 0) -> None:
    """Seed torch's generators, on every device, for one optimiser step: dropout, LSH rotations.

    All arguments count from 0. A resumed run needs no saved generator state: it draws what the unbroken one draws,
    and what a validation or a skipped step drew changes nothing later. Order of the utterances and SpecAugment are
    pure functions of (seed, epoch) and (seed, epoch, utterance) and take nothing from these generators.
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/{step}/{rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
