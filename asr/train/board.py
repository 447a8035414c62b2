"""Curves, texts and pictures for TensorBoard, in a file that its readers may open while it grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Board:
    """`first`: the epoch from which on an earlier writer's events are not shown, since it is trained again."""

    def __init__(self, folder: Path, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # seconds to import, which those without it need not wait

        self._writer = SummaryWriter(str(folder), purge_step=first)

    def epoch(self, record: dict[str, Any]) -> None:
        """The numbers of an epoch's line of log.jsonl, those of its groups as `group/name`."""
        epoch = record["epoch"]
        for key, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "epoch":
                self._writer.add_scalar(key, value, epoch)
        for group in ("seconds", "loss_parts"):
            for key, value in record.get(group, {}).items():
                self._writer.add_scalar(f"{group}/{key}", value, epoch)
        self._writer.flush()

    def text(self, name: str, text: str, epoch: int) -> None:
        """Shown as it is, in letters of one width."""
        self._writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), epoch)

    def picture(self, name: str, pixels: NDArray[np.uint8], epoch: int) -> None:
        """(height, width, 3)."""
        self._writer.add_image(name, pixels, epoch, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
