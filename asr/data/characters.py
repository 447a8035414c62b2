"""Character targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asr.data.config import CharactersConfig
from asr.data.manifest import Utterance
from asr.data.token_table import BLANK, SPACE, UNK, TokenTable


class CharacterTable(TokenTable):
    """Unicode code points; the space between words is `▁`. A character not seen in training is `<unk>`."""

    kind = "characters"
    separator = ""

    def encode(self, utterance: Utterance) -> list[int]:
        target: list[int] = []
        for word in utterance.words:
            if target:
                target.append(self.ids[SPACE])
            target += [self.unk if self._is_unknown(character) else self.ids[character] for character in word]  # type: ignore[misc]
        return target

    def unknown(self, utterance: Utterance) -> list[str]:
        return [character for word in utterance.words for character in word if self._is_unknown(character)]

    def _is_unknown(self, character: str) -> bool:
        return character == SPACE or character not in self.ids  # a literal ▁ in a text must not turn into a space

    def text_of(self, ids: Iterable[int]) -> str:
        return super().text_of(ids).replace(SPACE, " ").strip()

    @classmethod
    def _load(cls, state: dict[str, Any]) -> CharacterTable:
        return cls(state["symbols"], state["unk"])


def build_characters(config: CharactersConfig, train: Iterable[Utterance]) -> CharacterTable:
    """The table of the characters of the training text, sorted by code point. Raises DataError if there are none."""
    seen = {character for utterance in train for word in utterance.words for character in word} - {SPACE}
    return CharacterTable([BLANK, UNK, *([SPACE] if seen else []), *sorted(seen)], unk=1)
