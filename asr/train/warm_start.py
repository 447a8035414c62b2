"""The first weights from another experiment, of the same model or of one that shares some of its layers.

A parameter is taken where name and shape are the same, so that a model with another mixer, more layers or another
front-end gets what there is. The output layer is taken token by token: a symbol that both tables have keeps its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.errors import DataError
from asr.train.checkpoint import decodable, load_checkpoint
from asr.wording import counted


@dataclass
class Loaded:
    """Names of a model's parameters by what became of them, and of the others' that were not used."""

    taken: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # not in the other experiment
    reshaped: list[str] = field(default_factory=list)  # there, of another shape
    unused: list[str] = field(default_factory=list)
    symbols: int = 0  # rows of the output layer that were taken

    def text(self) -> str:
        lines = [f"{counted(len(self.taken), 'parameter')} taken, among them {self.symbols} tokens of the output layer"]
        for kind, why in (("missing", "not there"), ("reshaped", "of another shape"), ("unused", "left over")):
            names = getattr(self, kind)
            if names:
                shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
                lines.append(f"{len(names)} {why}: {shown}")
        return "; ".join(lines)


def warm_start(model: CtcModel, tokens: TokenTable, path: Path) -> Loaded:
    """Put the weights of an experiment folder (averaged.pt, else best.pt) or checkpoint into the model.

    Raises:
        DataError: there is none, it is damaged, or no parameter of it fits.
    """
    path = decodable(path)
    saved = load_checkpoint(path)
    theirs: dict[str, Tensor] = {k: v for k, v in saved["model"].items() if isinstance(v, Tensor)}
    own = dict(model.named_parameters())
    loaded = Loaded(unused=[name for name in theirs if name not in model.state_dict()])
    width = theirs["output.weight"].shape[1:]
    rows = _shared_rows(tokens.symbols, TokenTable.from_state(saved["tokens"]).symbols)
    with torch.no_grad():
        for name, value in own.items():
            if name not in theirs:
                loaded.missing.append(name)
            elif name.startswith("output.") and width == model.output.weight.shape[1:]:
                for row, other in rows.items():
                    value[row] = theirs[name][other]
                loaded.taken.append(name)
                loaded.symbols = len(rows)
            elif theirs[name].shape == value.shape and not name.startswith("output."):
                value.copy_(theirs[name])
                loaded.taken.append(name)
            else:
                loaded.reshaped.append(name)
    if not loaded.taken:
        raise DataError(f"{path}: training.init: no parameter of it fits this model; {loaded.text()}")
    return loaded


def _shared_rows(symbols: Sequence[str], others: Sequence[str]) -> Mapping[int, int]:
    """Row of each symbol that both tables have → its row in the other."""
    where = {symbol: row for row, symbol in enumerate(others)}
    return {row: where[symbol] for row, symbol in enumerate(symbols) if symbol in where}
