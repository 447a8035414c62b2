"""Subword targets: sentencepiece units (Kudo and Richardson 2018), learnt in-process from the training text."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable
from typing import Any

import sentencepiece

from asr.data.config import SubwordsConfig
from asr.data.manifest import Utterance
from asr.data.token_table import BLANK, SPACE, UNK, TokenTable
from asr.errors import DataError


class SubwordTable(TokenTable):
    """sentencepiece units with its own ids: `<blank>` is its padding piece 0, which it never emits, `<unk>` is 1."""

    kind = "subwords"
    separator = ""

    def __init__(self, model: bytes) -> None:
        self.model = model
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        symbols = [self.pieces.id_to_piece(number) for number in range(self.pieces.get_piece_size())]
        super().__init__(symbols, self.pieces.unk_id())

    def encode(self, utterance: Utterance) -> list[int]:
        return self.pieces.encode(_text(utterance), out_type=int)

    def unknown(self, utterance: Utterance) -> list[str]:
        pieces = self.pieces.encode(_text(utterance), out_type=str)
        return [piece.lstrip(SPACE) or piece for piece in pieces if self.pieces.piece_to_id(piece) == self.unk]

    def text_of(self, ids: Iterable[int]) -> str:
        return super().text_of(ids).replace(SPACE, " ").strip()

    def _more_state(self) -> dict[str, Any]:
        return {"model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def _load(cls, state: dict[str, Any]) -> SubwordTable:
        table = cls(base64.b64decode(state["model"]))
        if table.symbols != state["symbols"] or table.unk != state["unk"]:
            raise DataError("token table: the sentencepiece model and the symbols beside it differ")
        return table


def build_subwords(config: SubwordsConfig, train: Iterable[Utterance]) -> SubwordTable:
    """Learn `config.size` units, blank and unk included; the same text gives the same model.

    Raises DataError if the text is empty, too small for that many units or has more characters than units.
    """
    lines = [text for text in map(_text, train) if text]
    if not lines:
        raise DataError("tokens: the training text is empty; subwords cannot be learnt from it")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=config.model,
            vocab_size=config.size,
            normalization_rule_name="identity",  # the default NFKC would change references behind the user's back
            character_coverage=1.0,
            max_sentence_length=max(len(line.encode("utf-8")) for line in lines) + 1,  # longer ones would be skipped
            num_threads=1,  # sums in one order: the same model everywhere
            pad_id=0,
            pad_piece=BLANK,
            unk_id=1,
            unk_piece=UNK,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise DataError(_explain(str(error), config.size)) from None
    return SubwordTable(model.getvalue())


def _text(utterance: Utterance) -> str:
    # sentencepiece writes spaces as ▁; one in the transcript must come out as unknown, not as a space
    return " ".join(utterance.words).replace(SPACE, "\ufffd")


def _explain(message: str, size: int) -> str:
    key = f"tokens.size: {size}"
    most = re.search(r"set it to a value <= (\d+)", message)
    if most:
        return f"{key} units are more than this training text can give; at most {most[1]}"
    if "required_chars" in message or "smaller than" in message:
        return f"{key} units are fewer than the training text has characters; use more, or tokens.kind: characters"
    return f"{key} units could not be learnt by sentencepiece: {' '.join(message.split())}"
