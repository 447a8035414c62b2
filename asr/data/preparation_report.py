"""What a preparation made, and what is odd about it: `report.txt` to read, `report.json` for programs."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr.audio.config import FeaturesConfig
from asr.audio.fbank import num_frames
from asr.data.audio_stats import AudioStats
from asr.data.feasible import required_frames
from asr.data.lexicon import Lexicon, fold_stress
from asr.data.manifest import Utterance
from asr.data.report_text import report_text
from asr.data.validate import Summary, summarise
from asr.files import write_atomically

LENGTH_EDGES = (1, 2, 3, 5, 10, 15, 20, 30)  # seconds; the histogram's inner borders
FACTORS = (1, 2, 4)  # feature frames per encoder frame
CLIPPED = 0.001  # share of clipped samples above which an utterance is listed
SILENT_PEAK = 0.001  # an utterance that never passes -60 dB of full scale is listed
FEATURES = FeaturesConfig()  # 25 ms windows every 10 ms


@dataclass(frozen=True)
class SetReport:
    """One set. Counts are utterances unless said otherwise."""

    summary: Summary
    lengths: list[int]  # one more than LENGTH_EDGES
    rates: dict[int, int]  # Hz → utterances; empty, as all of audio, where it was not measured
    measured: int
    clipped_percent: float  # of samples
    silent_percent: float  # of 10 ms frames
    clipped: list[str]  # ids above CLIPPED
    silent: list[str]  # ids under SILENT_PEAK
    infeasible: dict[str, dict[int, int]]  # phones or characters → factor → utterances that CTC could not align
    oov: dict[str, int]  # word → times, the most frequent first
    oov_utterances: int


@dataclass(frozen=True)
class PreparationReport:
    """All sets. `dropped`: id → reason. `duplicates`: groups of "set/id" with the same samples under different ids."""

    sets: dict[str, SetReport]
    lexicon_words: int | None  # None: no lexicon was given
    lexicon_phones: int | None
    shared_speakers: dict[str, int]  # "a and b" → speakers in both, where there are any
    shared_ids: dict[str, int]  # "a and b" → utterances in both
    duplicates: list[list[str]]
    notices: list[str]
    dropped: dict[str, str]

    @property
    def duplicates_across(self) -> list[list[str]]:
        """The groups that lie in more than one set: what is tested on was trained on."""
        return [group for group in self.duplicates if len({name.partition("/")[0] for name in group}) > 1]

    def text(self, most: int | None = None) -> str:
        """Lines to read, in ASCII but for words and names. No list shows more than `most` entries; None: all."""
        return report_text(self, most)

    def json(self) -> str:
        """The same, complete, as one JSON object."""
        tree: dict[str, Any] = {"version": 1, "length_edges_seconds": LENGTH_EDGES, **asdict(self)}
        tree["duplicates_across_sets"] = len(self.duplicates_across)
        return json.dumps(tree, ensure_ascii=False, indent=1) + "\n"


def write_report(
    out: Path,
    sets: Mapping[str, Sequence[Utterance]],
    dropped: Mapping[str, str],
    *,
    stats: Mapping[str, AudioStats] | None = None,
    lexicon: Lexicon | None = None,
    notices: Sequence[str] = (),
) -> PreparationReport:
    """Write `report.txt` and `report.json` into the folder `out`, and return the report.

    `dropped`: id → reason. `stats`: id → what `asr.data.audio_stats` measured; utterances without are counted as not
    measured. `lexicon`: None says nothing of words without pronunciation. `notices`: lines to pass on to the reader.
    The same input gives the same bytes.
    """
    report = make_report(sets, dropped, stats=stats, lexicon=lexicon, notices=notices)
    write_atomically(out / "report.json", report.json())
    write_atomically(out / "report.txt", report.text())
    return report


def make_report(
    sets: Mapping[str, Sequence[Utterance]],
    dropped: Mapping[str, str],
    *,
    stats: Mapping[str, AudioStats] | None = None,
    lexicon: Lexicon | None = None,
    notices: Sequence[str] = (),
) -> PreparationReport:
    """The report without writing it; see `write_report`."""
    stats = stats or {}
    return PreparationReport(
        sets={name: _set_report(utterances, stats, lexicon) for name, utterances in sets.items()},
        lexicon_words=None if lexicon is None else len(lexicon),
        lexicon_phones=None if lexicon is None else len(lexicon.phones),
        shared_speakers=_shared({name: {u.speaker for u in utterances} for name, utterances in sets.items()}),
        shared_ids=_shared({name: {u.id for u in utterances} for name, utterances in sets.items()}),
        duplicates=_duplicates(sets, stats),
        notices=list(notices),
        dropped=dict(sorted(dropped.items())),
    )


def _set_report(utterances: Sequence[Utterance], stats: Mapping[str, AudioStats], lexicon: Lexicon | None) -> SetReport:
    lengths = [0] * (len(LENGTH_EDGES) + 1)
    for utterance in utterances:
        lengths[bisect_right(LENGTH_EDGES, utterance.duration)] += 1
    measured = {u.id: stats[u.id] for u in utterances if u.id in stats}
    samples = sum(s.samples for s in measured.values())
    seconds = sum(s.seconds for s in measured.values())
    unknown: Counter[str] = Counter()
    with_unknown = 0
    if lexicon is not None:
        for utterance in utterances:
            words = [word for word in utterance.words if word not in lexicon]
            unknown.update(words)
            with_unknown += bool(words)
    return SetReport(
        summary=summarise(list(utterances)),
        lengths=lengths,
        rates=dict(sorted(Counter(s.rate for s in measured.values()).items())),
        measured=len(measured),
        clipped_percent=100 * sum(s.clipped * s.samples for s in measured.values()) / max(samples, 1),
        silent_percent=100 * sum(s.silent * s.seconds for s in measured.values()) / max(seconds, 1e-9),
        clipped=sorted(id for id, s in measured.items() if s.clipped > CLIPPED),
        silent=sorted(id for id, s in measured.items() if s.peak < SILENT_PEAK),
        infeasible=_infeasible(utterances, lexicon),
        oov=dict(sorted(unknown.items(), key=lambda pair: (-pair[1], pair[0]))),
        oov_utterances=with_unknown,
    )


def _infeasible(utterances: Sequence[Utterance], lexicon: Lexicon | None) -> dict[str, dict[int, int]]:
    """Utterances with fewer encoder frames than labels and blanks between equal ones, by unit and by factor.

    Phones are those of the manifest, or of each word's shortest pronunciation without stress marks, for words that
    have one: a lower bound. Characters include one between words.
    """
    counts: dict[str, Counter[int]] = {"phones": Counter(), "characters": Counter()}
    if lexicon is None and any(u.phones is None for u in utterances):
        del counts["phones"]
    for utterance in utterances:
        frames = num_frames(round(utterance.duration * FEATURES.sample_rate), FEATURES)
        for unit, counter in counts.items():
            labels = "▁".join(utterance.words) if unit == "characters" else _phones(utterance, lexicon)
            numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
            need = max(1, required_frames([numbers[label] for label in labels]))
            counter.update(factor for factor in FACTORS if -(-frames // factor) < need)
    return {unit: {factor: counter[factor] for factor in FACTORS} for unit, counter in counts.items()}


def _phones(utterance: Utterance, lexicon: Lexicon | None) -> list[str]:
    phones = utterance.phones
    if phones is None:
        assert lexicon is not None
        known = [min(lexicon[word], key=len) for word in utterance.words if word in lexicon]
        phones = tuple(phone for pronunciation in known for phone in pronunciation)
    return [fold_stress(phone) for phone in phones]


def _shared(members: Mapping[str, set[str]]) -> dict[str, int]:
    names = list(members)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {f"{a} and {b}": len(members[a] & members[b]) for a, b in pairs if members[a] & members[b]}


def _duplicates(sets: Mapping[str, Sequence[Utterance]], stats: Mapping[str, AudioStats]) -> list[list[str]]:
    groups: dict[str, dict[str, str]] = defaultdict(dict)  # digest → id → the first set it is in
    for name, utterances in sets.items():
        for utterance in utterances:
            if utterance.id in stats:
                groups[stats[utterance.id].digest].setdefault(utterance.id, name)
    found = [sorted(f"{name}/{id}" for id, name in ids.items()) for ids in groups.values() if len(ids) > 1]
    return sorted(found)
