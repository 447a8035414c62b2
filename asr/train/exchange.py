"""Gradients summed over processes, most of it while the last backward pass of a step still runs.

Parameters lie in buckets, the last layers' first, the order in which a backward pass is done with them. Source:
Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asr.train.world import World
from asr.upload import upload

BUCKET_BYTES = 8 << 20  # fewer cost more messages, more leave less of the backward pass to hide them in


class GradientExchange:
    """Makes every gradient the sum over all processes; one that no process has stays None.

    All processes send the same buckets in the same order, whatever part of a step they have, and get the same bits.

    Args:
        parameters: those that are learnt, the same in all processes; more are not noticed later.
    """

    def __init__(self, world: World, parameters: Iterable[nn.Parameter]) -> None:
        self._world = world
        self._buckets: list[list[nn.Parameter]] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        room = 0
        for parameter in reversed([p for p in parameters if p.requires_grad] if world.size > 1 else []):
            if room < parameter.nbytes:
                self._buckets.append([])
                room = BUCKET_BYTES
            room -= parameter.nbytes
            self._buckets[-1].append(parameter)
            self._bucket_of[parameter] = len(self._buckets) - 1
            parameter.register_post_accumulate_grad_hook(self._arrived)
        self._reset()

    def before_last_backward(self) -> None:
        """The next backward pass is this process's last of the step: what it is done with is sent at once."""
        self._watching = True

    def finish(self) -> None:
        """Send what has not been sent, and wait for the sums. Every process calls it in every step.

        Raises:
            LostProcess: another process does not take part.
        """
        if self._buckets:
            self._world.together(self._complete)
            self._reset()

    def _reset(self) -> None:
        self._watching = False
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Any]] = []
        self._error: RuntimeError | None = None

    def _arrived(self, parameter: nn.Parameter) -> None:
        """Called by autograd when a backward pass has added to a gradient all that it will."""
        if not self._watching:
            return
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)] and self._error is None:
            try:
                self._send()
            except RuntimeError as error:  # out of a backward pass it would not be known for what it is
                self._error = error

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        has = upload(torch.tensor([float(p.grad is not None) for p in bucket]), bucket[0].device)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([*(part.reshape(-1) for part in parts), has])
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def _complete(self) -> None:
        if self._error is not None:
            raise self._error
        while len(self._sent) < len(self._buckets):
            self._send()
        for _, work in self._sent:
            work.wait()
        flats = [flat for flat, _ in self._sent]
        counts = torch.cat([flat[-len(bucket) :] for bucket, flat in zip(self._buckets, flats, strict=True)]).tolist()
        sums = [
            total
            for bucket, flat in zip(self._buckets, flats, strict=True)
            for total in flat.split([*(p.numel() for p in bucket), len(bucket)])[:-1]
        ]
        for parameter, total, count in zip(self._bucket_of, sums, counts, strict=True):  # in the order of the buckets
            parameter.grad = total.view_as(parameter) if count else None
