"""The table between token ids and symbols: what every kind of token has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from asr.data.manifest import Utterance
from asr.data.text import split_words
from asr.errors import DataError

BLANK = "<blank>"  # CTC's blank: always id 0, never in a target
UNK = "<unk>"  # what stands for a word or character that the table does not know; scoring counts it as an error
SPACE = "▁"  # the space between words, in the tables that have one (U+2581, as sentencepiece writes it)
STATE_VERSION = 1


class OovError(DataError):
    """An utterance holds words, phones or characters that the table cannot express; `items` lists them."""

    def __init__(self, utterance: str, items: list[str]) -> None:
        super().__init__(f"utterance {utterance!r}: not in the token table: {' '.join(items)}")
        self.items = items


class TokenTable(ABC):
    """Symbols by id. `symbols[0]` is `<blank>`; `unk` is the id of `<unk>`, or None where there is none.

    Raises DataError if the blank is not first or not alone, if symbols are doubled, empty or hold a space, and if
    `unk` is the blank or not `<unk>`.
    """

    kind: ClassVar[str]
    separator: ClassVar[str] = " "  # what stands between symbols in text
    blank: ClassVar[int] = 0
    _kinds: ClassVar[dict[str, type[TokenTable]]] = {}

    def __init_subclass__(cls) -> None:
        TokenTable._kinds[cls.kind] = cls

    def __init__(self, symbols: Sequence[str], unk: int | None) -> None:
        self.symbols = list(symbols)
        self.unk = unk
        if not self.symbols or self.symbols[0] != BLANK:
            raise DataError(f"token table: the first symbol must be {BLANK}, got {self.symbols[:1]}")
        doubled = [symbol for symbol, count in Counter(self.symbols).items() if count > 1]
        if doubled:
            raise DataError(f"token table: symbols stand more than once: {' '.join(doubled[:10])}")
        if len(self.symbols) < 2 + (unk is not None):
            raise DataError("token table: there is no symbol but blank and unk; is the training text empty?")
        for symbol in self.symbols:
            if split_words(symbol) != [symbol]:
                raise DataError(f"token table: symbol {symbol!r} is empty or holds a space")
        if unk is not None and (not 0 < unk < len(self.symbols) or self.symbols[unk] != UNK):
            raise DataError(f"token table: id {unk} is not {UNK}")
        if unk is None and UNK in self.symbols:
            raise DataError(f"token table: {UNK} is among the symbols but has no id of its own")
        self.ids = {symbol: number for number, symbol in enumerate(self.symbols)}

    def __len__(self) -> int:
        """Number of tokens, blank and unk included: the width of the model's output."""
        return len(self.symbols)

    @abstractmethod
    def encode(self, utterance: Utterance) -> list[int]:
        """The target of an utterance. Raises OovError where the table cannot express it and has no `<unk>` to use."""

    @abstractmethod
    def unknown(self, utterance: Utterance) -> list[str]:
        """The words, phones or characters of the utterance that the table does not know, as often as they occur."""

    def symbols_of(self, ids: Iterable[int]) -> list[str]:
        """Symbols of token ids. Raises DataError for an id out of range."""
        ids = list(ids)
        self._check_range(ids, lowest=0)
        return [self.symbols[number] for number in ids]

    def text_of(self, ids: Iterable[int]) -> str:
        """Readable text of token ids (without blanks): `<unk>` stays visible, `▁` becomes a space."""
        return self.separator.join(self.symbols_of(ids))

    def check_target(self, target: Sequence[int]) -> None:
        """Raise DataError if an id is blank or out of range: torch's CTC loss would accept both and learn nonsense."""
        self._check_range(target, lowest=1)

    def _check_range(self, ids: Sequence[int], lowest: int) -> None:
        for number in ids:
            if not lowest <= number < len(self.symbols):
                what = f"is {BLANK}" if number == 0 else f"is outside {lowest} .. {len(self.symbols) - 1}"
                raise DataError(f"token id {number} {what}")

    def state(self) -> dict[str, Any]:
        """Plain types that hold all of the table; goes into checkpoints.

        `normaliser` names what is done to the text before it is encoded: nothing but splitting it into words.
        """
        return {
            "version": STATE_VERSION,
            "kind": self.kind,
            "symbols": list(self.symbols),
            "unk": self.unk,
            "normaliser": "none",
            **self._more_state(),
        }

    def _more_state(self) -> dict[str, Any]:
        return {}

    @classmethod
    @abstractmethod
    def _load(cls, state: dict[str, Any]) -> TokenTable:
        """The table of a state of this kind."""

    @staticmethod
    def from_state(state: dict[str, Any]) -> TokenTable:
        """The table that `state()` was taken from. Raises DataError for a state that this version cannot read."""
        if state.get("version") != STATE_VERSION or state.get("normaliser") != "none":
            raise DataError(
                f"token table: version {state.get('version')!r}, normaliser {state.get('normaliser')!r}; "
                f"this program reads version {STATE_VERSION}, normaliser 'none'"
            )
        if state.get("kind") not in TokenTable._kinds:
            raise DataError(f"token table: unknown kind {state.get('kind')!r}")
        return TokenTable._kinds[state["kind"]]._load(state)
