"""Phone targets: words through a lexicon, or the phones that the manifest carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asr.data.config import PhonesConfig
from asr.data.lexicon import Lexicon, Pronunciation, Stress, fold_stress, read_lexicon
from asr.data.manifest import Utterance
from asr.data.token_table import BLANK, UNK, OovError, TokenTable
from asr.errors import DataError


class PhoneTable(TokenTable):
    """Phones of the lexicon, sorted. Targets take a word's first pronunciation; `variants` gives them all for scoring.

    An utterance with `phones` is taken as it is (stress folded where the table folds, no silence added). The
    pronunciations are part of the table, so that new transcripts can be scored from the experiment folder alone.
    A word without pronunciation becomes `<unk>` under `oov: unk` and raises OovError under `error` and `drop`.
    """

    kind = "phones"

    def __init__(
        self,
        symbols: Sequence[str],
        unk: int | None,
        words: Mapping[str, tuple[Pronunciation, ...]],
        stress: Stress,
        oov: str,
        silence: str | None = None,
    ) -> None:
        super().__init__(symbols, unk)
        self.words = dict(words)
        self.stress = stress
        self.oov = oov
        self.silence = silence
        missing = {p for variants in self.words.values() for phones in variants for p in phones if p not in self.ids}
        if missing or (silence is not None and silence not in self.ids):
            raise DataError(f"token table: the lexicon uses phones that are not in it: {' '.join(sorted(missing))}")

    def encode(self, utterance: Utterance) -> list[int]:
        unknown = self.unknown(utterance)
        if unknown and self.unk is None:
            raise OovError(utterance.id, unknown)
        if utterance.phones is not None:
            return [self.ids.get(self._fold(phone), self.unk) for phone in utterance.phones]  # type: ignore[misc]
        silence = [self.ids[self.silence]] if self.silence is not None else []
        target = list(silence)
        for word in utterance.words:
            if word in self.words:
                target += [self.ids[phone] for phone in self.words[word][0]]
            else:
                target.append(self.unk)  # type: ignore[arg-type]
            target += silence
        return target

    def variants(self, utterance: Utterance) -> list[tuple[Pronunciation, ...]]:
        """For each word of the utterance all its pronunciations; silence, given phones and `<unk>` have but one."""
        if utterance.phones is not None:
            return [((self.symbols[number],),) for number in self.encode(utterance)]
        silence: list[tuple[Pronunciation, ...]] = [((self.silence,),)] if self.silence is not None else []
        choices = list(silence)
        for word in utterance.words:
            choices += [self.words.get(word, ((UNK,),)), *silence]
        return choices

    def unknown(self, utterance: Utterance) -> list[str]:
        if utterance.phones is not None:
            # blank and unk are in the table but no phone of a transcript
            return [phone for phone in utterance.phones if self.ids.get(self._fold(phone), 0) in (0, self.unk)]
        return [word for word in utterance.words if word not in self.words]

    def _fold(self, phone: str) -> str:
        return fold_stress(phone) if self.stress == "fold" else phone

    def _more_state(self) -> dict[str, Any]:
        lines = (f"{word} {' '.join(phones)}" for word, variants in self.words.items() for phones in variants)
        return {"stress": self.stress, "oov": self.oov, "silence": self.silence, "lexicon": "\n".join(lines)}

    @classmethod
    def _load(cls, state: dict[str, Any]) -> PhoneTable:
        fields = (line.split(" ") for line in state["lexicon"].split("\n") if line)
        words: dict[str, tuple[Pronunciation, ...]] = {}
        for word, *phones in fields:
            words[word] = (*words.get(word, ()), tuple(phones))
        return cls(state["symbols"], state["unk"], words, state["stress"], state["oov"], state["silence"])


def build_phones(config: PhonesConfig, train: Iterable[Utterance]) -> PhoneTable:
    """The table of the lexicon's phones and of those that training utterances carry themselves.

    Raises DataError if there is neither, or if an utterance has only words and there is no lexicon.
    """
    lexicon = read_lexicon(config.lexicon, config.stress) if config.lexicon else Lexicon({}, config.stress)
    phones = set(lexicon.phones)
    for utterance in train:
        if utterance.phones is not None:
            phones.update(fold_stress(p) if config.stress == "fold" else p for p in utterance.phones)
        elif config.lexicon is None:
            raise DataError(
                f"utterance {utterance.id!r} has no phones in its manifest: set tokens.lexicon in the recipe"
            )
    if config.silence is not None:
        phones.add(config.silence)
    reserved = sorted(phones & {BLANK, UNK})
    if reserved:
        raise DataError(f"{config.lexicon or 'manifest'}: {' '.join(reserved)} cannot be a phone; rename it")
    extra = [UNK] if config.oov == "unk" else []
    unk = 1 if extra else None
    return PhoneTable([BLANK, *extra, *sorted(phones)], unk, lexicon.entries, config.stress, config.oov, config.silence)
