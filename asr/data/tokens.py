"""Token tables from a recipe, and targets for whole sets with everything left out accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from asr.data.characters import CharacterTable, build_characters
from asr.data.config import CharactersConfig, PhonesConfig, SubwordsConfig, TokensConfig
from asr.data.manifest import Utterance
from asr.data.phones import PhoneTable, build_phones
from asr.data.subwords import SubwordTable, build_subwords
from asr.data.token_table import BLANK, SPACE, UNK, OovError, TokenTable
from asr.errors import DataError
from asr.wording import counted

__all__ = [
    "BLANK",
    "SPACE",
    "UNK",
    "CharacterTable",
    "EncodedSet",
    "OovError",
    "PhoneTable",
    "SubwordTable",
    "TokenTable",
    "build_tokens",
    "encode_all",
]

MAX_UNK_RATE = 0.5  # above it the text and the table do not belong together


def build_tokens(config: TokensConfig, train: Sequence[Utterance]) -> TokenTable:
    """The token table of a recipe, from the training utterances (and the lexicon) alone. Raises DataError."""
    if isinstance(config, PhonesConfig):
        return build_phones(config, train)
    if isinstance(config, SubwordsConfig):
        return build_subwords(config, train)
    assert isinstance(config, CharactersConfig)
    return build_characters(config, train)


@dataclass(frozen=True)
class EncodedSet:
    """Targets of a set by utterance id; `dropped` (id → reason) is disjoint from them."""

    targets: dict[str, list[int]]
    dropped: dict[str, str]
    oov: Counter[str]  # words (phones, characters) that the table does not know, dropped utterances included
    tokens: int
    unk_tokens: int
    space_tokens: int  # bare `▁`, which every text has whatever its script

    @property
    def unk_rate(self) -> float:
        """Share of `<unk>` among the target tokens that are not spaces, 0 to 1."""
        return self.unk_tokens / max(self.tokens - self.space_tokens, 1)

    def summary(self) -> str:
        """One line: how much was kept, what is unknown and what was dropped."""
        parts = [f"{counted(len(self.targets), 'utterance')}, {counted(self.tokens, 'token')}"]
        if self.oov:
            parts.append(f"{self.unk_rate:.2%} <unk>; unknown: {_top(self.oov)}")
        if self.dropped:
            parts.append(f"{counted(len(self.dropped), 'utterance')} dropped: {_some(list(self.dropped))}")
        return "; ".join(parts)


def encode_all(table: TokenTable, utterances: Iterable[Utterance]) -> EncodedSet:
    """Encode a set under the table's policy for unknown words.

    Raises DataError if words are unknown and the policy is `error` (top words, counts and utterance ids are listed),
    if more than half of the tokens are `<unk>`, if every utterance is dropped, and if a target holds the blank or an
    id out of range.
    """
    targets: dict[str, list[int]] = {}
    dropped: dict[str, str] = {}
    oov: Counter[str] = Counter()
    for utterance in utterances:
        if utterance.id in targets or utterance.id in dropped:
            raise DataError(f"utterance {utterance.id!r} stands twice in one set")
        unknown = table.unknown(utterance)
        oov.update(unknown)
        try:
            target = table.encode(utterance)
        except OovError as error:
            dropped[utterance.id] = f"not in the lexicon: {' '.join(dict.fromkeys(error.items))}"
            continue
        try:
            table.check_target(target)
        except DataError as error:
            raise DataError(f"utterance {utterance.id!r}: {error}") from None
        targets[utterance.id] = target

    if dropped and getattr(table, "oov", "error") == "error":
        raise DataError(
            f"words without pronunciation: {len(oov)}, in {counted(len(dropped), 'utterance')} "
            f"({_some(list(dropped))}): {_top(oov)}. Add them to the lexicon, or set tokens.oov to "
            f"unk or drop.{_case_hint(table, oov)}"
        )
    if dropped and not targets:
        raise DataError(f"every utterance has words without pronunciation: {_top(oov)}.{_case_hint(table, oov)}")
    counts = Counter(chain.from_iterable(targets.values()))
    unk_tokens = counts[table.unk] if table.unk is not None else 0
    space_tokens = counts[table.ids[SPACE]] if SPACE in table.ids else 0
    encoded = EncodedSet(targets, dropped, oov, counts.total(), unk_tokens, space_tokens)
    if encoded.unk_rate > MAX_UNK_RATE:
        raise DataError(
            f"{encoded.unk_rate:.0%} of the target tokens are <unk> (at most {MAX_UNK_RATE:.0%} are allowed): "
            f"{_top(oov)}. The transcripts do not fit the token table.{_case_hint(table, oov)}"
        )
    return encoded


def _top(counts: Counter[str], most: int = 10) -> str:
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{word} ({count})" for word, count in top[:most]) + (" ..." if len(top) > most else "")


def _some(ids: list[str], most: int = 5) -> str:
    return ", ".join(ids[:most]) + (" ..." if len(ids) > most else "")


def _case_hint(table: TokenTable, oov: Counter[str]) -> str:
    # subwords and characters: compare letters, for an unknown stretch of text is no unit
    words = isinstance(table, PhoneTable)
    known = table.words if isinstance(table, PhoneTable) else set("".join(table.symbols))
    for item, _ in oov.most_common():
        mine = item if words else item[0]
        for other in (mine.upper(), mine.lower()):
            if other in known and other != mine:
                return f" Upper and lower case differ: the table has {other!r}, the text {mine!r}."
    return ""
