"""Error rates of a corpus: total edits over total reference tokens, with interval, confusions and alignments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from asr.ctc.alignment import Counts, Edit, align, format_edits
from asr.ctc.confidence import bootstrap_interval
from asr.data.lexicon import fold_stress
from asr.errors import DataError


@dataclass(frozen=True)
class Scored:
    """One utterance to be scored. Tokens are whole: `AH0` is one phone, never three characters."""

    id: str
    reference: Sequence[str]
    hypothesis: Sequence[str]


@dataclass(frozen=True)
class ScoredUtterance:
    """One utterance aligned."""

    id: str
    edits: list[Edit]
    counts: Counts
    reference_tokens: int

    @property
    def line(self) -> str:
        """The alignment in the notation of `format_edits`."""
        return format_edits(self.edits)


@dataclass(frozen=True)
class Score:
    """Totals of a corpus. Rates are in percent; None means undefined (no reference token), never 0."""

    unit: str  # what `rate` is called: PER, WER, CER, TER
    ignored: tuple[str, ...]  # tokens removed from both sides
    folded: bool  # stress digits removed on both sides
    counts: Counts
    reference_tokens: int
    hypothesis_tokens: int
    interval: tuple[float, float] | None  # 95 %, bootstrap over utterances
    utterances: list[ScoredUtterance]  # in byte order of their ids
    best_pronunciations: bool = False  # references were chosen to fit the hypotheses, see asr.ctc.pronunciations

    @property
    def errors(self) -> int:
        return self.counts.errors

    @property
    def rate(self) -> float | None:
        return 100 * self.errors / self.reference_tokens if self.reference_tokens else None

    @property
    def wrong_utterances(self) -> int:
        return sum(utterance.counts.errors > 0 for utterance in self.utterances)

    @property
    def utterance_rate(self) -> float | None:
        """Share of utterances with at least one error, in percent."""
        return 100 * self.wrong_utterances / len(self.utterances) if self.utterances else None

    def _count(self, kind: str) -> list[tuple[Edit, int]]:
        edits = Counter(edit for utterance in self.utterances for edit in utterance.edits if not edit.correct)
        chosen = [(edit, n) for edit, n in edits.items() if edit.kind == kind]
        return sorted(chosen, key=lambda item: (-item[1], str(item[0])))

    def substitutions(self) -> list[tuple[str, str, int]]:
        """(reference token, hypothesis token, times), the most frequent first."""
        return [(str(e.reference), str(e.hypothesis), n) for e, n in self._count("substitution")]

    def deletions(self) -> list[tuple[str, int]]:
        return [(str(e.reference), n) for e, n in self._count("deletion")]

    def insertions(self) -> list[tuple[str, int]]:
        return [(str(e.hypothesis), n) for e, n in self._count("insertion")]

    def worst(self, count: int = 20) -> list[ScoredUtterance]:
        """The utterances with most errors, the higher rate first where they tie."""
        wrong = [u for u in self.utterances if u.counts.errors]
        return sorted(wrong, key=lambda u: (-u.counts.errors, u.reference_tokens, u.id))[:count]

    def summary(self) -> str:
        """One line, such as `PER 9.75 % [8.61, 11.02] (S 120, D 61, I 33; 2194 reference tokens; stress folded)`."""
        rate = "undefined (no reference tokens)" if self.rate is None else f"{self.rate:.2f} %"
        interval = "" if self.interval is None else f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"
        s, d, i = self.counts
        parts = [f"S {s}, D {d}, I {i}", f"{self.reference_tokens} reference tokens", *self.rules()]
        return f"{self.unit} {rate}{interval} ({'; '.join(parts)})"

    def rules(self) -> list[str]:
        """What was done to both sides before counting: part of what the rate means, so printed with it."""
        rules = ["stress folded"] if self.folded else []
        rules += ["best pronunciation of each word"] if self.best_pronunciations else []
        return rules + ([f"ignored: {' '.join(self.ignored)}"] if self.ignored else [])

    def as_dict(self) -> dict[str, Any]:
        """All totals as plain types, for JSON. Rates in percent, null where undefined."""
        return {
            "unit": self.unit,
            "rate": self.rate,
            "interval": None if self.interval is None else list(self.interval),
            "errors": self.errors,
            "substitutions": self.counts.substitutions,
            "deletions": self.counts.deletions,
            "insertions": self.counts.insertions,
            "reference_tokens": self.reference_tokens,
            "hypothesis_tokens": self.hypothesis_tokens,
            "utterances": len(self.utterances),
            "wrong_utterances": self.wrong_utterances,
            "utterance_rate": self.utterance_rate,
            "ignored": list(self.ignored),
            "rules": self.rules(),
        }


def score(
    pairs: Iterable[Scored],
    ignore: Iterable[str] = (),
    bootstrap: int = 1000,
    seed: int = 0,
    unit: str = "PER",
    stress: Literal["keep", "fold"] = "keep",
    unmatchable: str | None = "<unk>",
    best_pronunciations: bool = False,
) -> Score:
    """Score a corpus. The order of the pairs is irrelevant.

    Args:
        ignore: tokens removed from reference and hypothesis alike (silence, noise).
        bootstrap: resamples of utterances behind the interval; 0: no interval.
        unit: the name of the rate.
        stress: `fold` reads `AH0`, `AH1`, `AH2` as `AH` on both sides, before `ignore` applies.
        unmatchable: a token that is an error wherever it stands, also against itself; None: no such token.
        best_pronunciations: the references were chosen by `best_reference`; only passed on, to be said with the rate.

    Raises:
        DataError: an id occurs twice.
    """
    folded = stress == "fold"
    ignored = {fold_stress(t) if folded else t for t in ignore}

    def clean(tokens: Sequence[str]) -> list[str]:
        return [t for t in (map(fold_stress, tokens) if folded else tokens) if t not in ignored]

    ordered = sorted(pairs, key=lambda pair: pair.id)
    for one, other in pairwise(ordered):
        if one.id == other.id:
            raise DataError(f"utterance {one.id}: two results to score; ids must be unique")
    texts = [(clean(pair.reference), clean(pair.hypothesis)) for pair in ordered]
    utterances = []
    for pair, (reference, _), edits in zip(ordered, texts, align(texts, unmatchable), strict=True):
        kinds = Counter(edit.kind for edit in edits)
        counts = Counts(kinds["substitution"], kinds["deletion"], kinds["insertion"])
        utterances.append(ScoredUtterance(pair.id, edits, counts, len(reference)))
    totals = Counts(*(sum(u.counts[k] for u in utterances) for k in range(3)))
    lengths = [u.reference_tokens for u in utterances]
    return Score(
        unit=unit,
        ignored=tuple(sorted(ignored)),
        folded=folded,
        counts=totals,
        reference_tokens=sum(lengths),
        hypothesis_tokens=sum(len(hypothesis) for _, hypothesis in texts),
        interval=bootstrap_interval([u.counts.errors for u in utterances], lengths, bootstrap, seed),
        utterances=utterances,
        best_pronunciations=best_pronunciations,
    )


def match(references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, Sequence[str]]) -> list[Scored]:
    """Pair by id. A reference without hypothesis is paired with an empty one, so all its tokens are deletions.

    Raises:
        DataError: a hypothesis has no reference.
    """
    extra = sorted(set(hypotheses) - set(references))
    if extra:
        shown = ", ".join(extra[:5]) + (f" and {len(extra) - 5} more" if len(extra) > 5 else "")
        raise DataError(f"no reference for {len(extra)} hypotheses: {shown}; score them against their own set")
    return [Scored(id, reference, hypotheses.get(id, ())) for id, reference in references.items()]
