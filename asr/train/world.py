"""Several processes that train one model together, started by torchrun: who they are and what they tell each other.

Each of them takes its part of every optimiser step and the gradients are summed, so that any number of processes makes
the steps of one. Numbers and objects go over gloo, gradients on GPUs over NCCL. torch's DistributedDataParallel is not
used: it wants every process to run every parameter backward at every step, averages over processes instead of summing
over tokens, and hangs or fails where a process has nothing to do.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from asr.errors import AsrError
from asr.train.config import TrainingConfig
from asr.train.memory import lacks_memory
from asr.train.run import pick_device
from asr.wording import counted

log = logging.getLogger("asr")
T = TypeVar("T")

PATIENCE = timedelta(days=7)  # while one process does what the others wait for; one that ends is noticed at once
WORD = 3.0  # seconds in which every process that lives has noticed that another does not


class LostProcess(AsrError):
    """Another process of this training ended or did not answer."""


class World:
    """The processes of one training, seen from one of them. A context manager; with one process it does nothing.

    Attributes:
        rank: from 0; rank 0 alone writes files and logs. size: processes in all.
        device: this process's own.
        place: where it is, for messages; the loop keeps it up to date.
        restarted: torchrun started these processes in place of some that failed.

    Raises:
        AsrError: a device that cannot be had; whatever is raised inside names rank and machine when it leaves.
        LostProcess: from any method that several processes call together, when one of them does not within
            `training.timeout_minutes`. All have to call the same methods in the same order.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.rank, self.size = this_rank(), int(os.environ.get("WORLD_SIZE", 1))
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
        self.limit = timedelta(minutes=config.timeout_minutes)
        self.place = "at the start"
        self.device = self._pick(config.device)
        self._calls = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {platform.node()}"

    def __enter__(self) -> World:
        self._level = log.level
        if self.size > 1:
            backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
            try:
                store, rank, size = next(iter(dist.rendezvous("env://")))
                # Its own keys at every restart: torchrun may go on with the store of the processes before, and their
                # addresses in it.
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                self._store = dist.PrefixStore(f"asr/{attempt}/{size}", store)
                dist.init_process_group(backend, store=self._store, rank=rank, world_size=size, timeout=self.limit)
                self._patient: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
            except (RuntimeError, ValueError) as error:
                raise AsrError(
                    f"{self.name}: the {self.size} processes did not find each other ({_line(error)}); "
                    "start them with torchrun"
                ) from None
            if not self.first:
                log.setLevel(logging.ERROR)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.size == 1:
            return
        if isinstance(error, AsrError) and error.exit_code == AsrError.exit_code:
            if not isinstance(error, LostProcess):
                error.args = (f"{self.name}, {self.place}: {error}",)
        elif isinstance(error, AsrError) and not self.first:
            error.args = ("",)  # rank 0 says that they were all interrupted
        elif error is not None:
            log.error("%s, %s: %s", self.name, self.place, repr(error))
        if error is not None:
            with suppress(Exception):
                self._store.set(f"failed/{self.rank}", _line(error) or "it was interrupted")
        log.setLevel(self._level)
        if error is None or self.device.type == "cpu":  # NCCL would wait for processes that are gone
            dist.destroy_process_group()

    def part(self, group: list[list[int]]) -> list[list[int]]:
        """This process's part of a group of batches: whole ones if they go round, else some rows of each."""
        if len(group) % self.size == 0:
            return group[self.rank :: self.size]
        parts = [rows[(self.rank + i) % self.size :: self.size] for i, rows in enumerate(group)]
        return [rows for rows in parts if rows]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes, the same bits in each."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        self.together(lambda: dist.all_reduce(total))
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return self.sum([float(flag)])[0] > 0

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank: plain types and tensors of the CPU."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self.together(lambda: dist.all_gather_object(values, value))
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, however long it takes; the others do not call `make`."""
        if self.size == 1:
            return make()
        box = [make() if self.first else None]
        self.together(lambda: dist.broadcast_object_list(box, group=self._patient))
        return box[0]  # type: ignore[return-value]

    def wait(self) -> None:
        """Until every process is here, however long that takes."""
        if self.size > 1:
            self.together(lambda: dist.barrier(group=self._patient))

    def same_weights(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of rank 0."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                self.together(lambda tensor=tensor: dist.broadcast(tensor, 0))  # type: ignore[misc]

    def together(self, call: Callable[[], object]) -> None:
        """Call what every process calls. Raises LostProcess where it fails for want of one of them."""
        self._calls += 1
        try:
            self._store.set(f"at/{self.rank}", f"{self.name}, {self.place}")
            call()
        except RuntimeError as error:
            if lacks_memory(error):
                raise
            raise LostProcess(self._who(error)) from None

    def _who(self, error: RuntimeError) -> str:
        """Which processes failed or are silent. All that live notice within `WORD`, and write it into the store."""
        silent: dict[int, str] = {}
        with suppress(RuntimeError, ValueError):  # the store ends with the process that holds it
            self._store.set(f"lost/{self.rank}", "")
            others = [rank for rank in range(self.size) if rank != self.rank]
            until = time.monotonic() + WORD
            while others and time.monotonic() < until:
                silent = {rank: self._what_of(rank) for rank in others}
                time.sleep(0.1)
                others = [rank for rank in others if not self._store.check([f"lost/{rank}"])]
            silent = {rank: silent[rank] for rank in others}
        text = "; ".join(silent.values()) or f"another process is gone ({_line(error)})"
        return f"{self.name}, {self.place}: cannot go on: {text}; --resume goes on from the last checkpoint"

    def _what_of(self, rank: int) -> str:
        at, failed = f"at/{rank}", f"failed/{rank}"
        name = self._store.get(at).decode() if self._store.check([at]) else f"rank {rank}"
        if self._store.check([failed]):
            return f"{name}, failed: {self._store.get(failed).decode()}"
        return f"{name}, was killed or did not answer within {self.limit.total_seconds():g} s"

    def _pick(self, name: str) -> torch.device:
        """The recipe's device; of several GPUs the one whose number is this process's on its machine."""
        device = pick_device(name)
        if self.size == 1 or device.type != "cuda":
            return device
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
        if device.index is not None or here > gpus:
            raise AsrError(
                f"training.device={name}: {counted(here, 'process')} on {platform.node()}, which has "
                f"{counted(gpus, 'GPU')}; start one process for each (torchrun --nproc-per-node), with "
                "training.device=auto"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)


def this_rank() -> int:
    """Of this process, from 0; 0 where there is only one."""
    return int(os.environ.get("RANK", 0))


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300] if str(error).strip() else type(error).__name__
