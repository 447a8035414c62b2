"""A Kaldi data directory → stretches of audio with speaker and text, by id."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from prepare_shards import Measured

from asr.data.audio_stats import AudioStats, Stretch, measure_audio
from asr.data.manifest import Utterance
from asr.data.text import split_words
from asr.errors import AsrError, DataError
from kaldi.archives import extract_sound
from kaldi.mismatch import mismatch_table
from kaldi.rxfilename import Place, parse
from kaldi.tables import Field, Table, byte_order, read_speakers, read_table

Measure = Callable[[list[Stretch]], Sequence[Measured]]


@dataclass
class Imported:
    """What came out of a data directory. `dropped`: id → reason."""

    utterances: list[Utterance] = field(default_factory=list)
    stats: dict[str, AudioStats] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def read_data_dir(
    folder: Path,
    root: Path,
    sounds: Path,
    max_overshoot: float,
    share: Callable[[list[Stretch], Measure], list[Measured]],
) -> Imported:
    """Read `wav.scp`, `text`, and where they are there `segments`, `utt2spk` and `spk2utt`.

    Relative paths in `wav.scp` are relative to `root`; sounds inside archives are written to the folder `sounds`.
    A segment that ends up to `max_overshoot` seconds after its recording is cut there, with a notice; one that ends
    later, or does not start before both, is dropped. An id that is not in all files is dropped. `share` calls the
    measuring function that it is given for the stretches of this process (`Shards.measure`).

    Raises DataError for a missing file, an id that stands twice, and if the files have no id in common.
    """
    result = Imported()
    wavs = read_table(folder / "wav.scp")
    texts = read_table(folder / "text", empty=True)
    speakers = read_speakers(folder)
    segments = read_table(folder / "segments") if (folder / "segments").is_file() else None
    ids = {"wav.scp" if segments is None else "segments": set(wavs if segments is None else segments)}
    ids["text"] = set(texts)
    if speakers is None:
        result.notices.append(f"{folder}: neither utt2spk nor spk2utt: every utterance is its own speaker")
        speakers = {id: id for id in texts}
    else:
        ids["utt2spk" if (folder / "utt2spk").is_file() else "spk2utt"] = set(speakers)
    kept = _agree(folder, ids, result)
    found = _Recordings(wavs, root, sounds)
    stretches: dict[str, Stretch] = {}
    for id in kept:
        try:
            stretches[id] = found.whole(id) if segments is None else found.segment(segments[id])
        except AsrError as error:
            result.dropped[id] = str(error)
    measured = share(list(stretches.values()), partial(found.measure, max_overshoot=max_overshoot))
    for (id, stretch), stats in zip(stretches.items(), measured, strict=True):
        if not isinstance(stats, AudioStats):
            result.dropped[id] = f"{stats}" if segments is None else f"{segments[id].where}: {stats}"
            continue
        try:
            text = " ".join(split_words(texts[id].value))
        except DataError as error:
            result.dropped[id] = f"{texts[id].where}: {error}"
            continue
        if stats.overshoot > 0:
            result.notices.append(f"{id}: segment cut by {stats.overshoot:.3f} s, where its recording ends")
        result.stats[id] = stats
        result.utterances.append(
            Utterance(
                id=id,
                audio=stretch.audio.absolute(),
                start=stats.start,
                duration=stats.seconds,
                speaker=speakers[id],
                text=text,
                extra={} if stretch.channel is None else {"channel": stretch.channel},
            )
        )
    return result


def _agree(folder: Path, ids: dict[str, set[str]], result: Imported) -> list[str]:
    """The ids that all files have, in byte order; the others are dropped, and shown in a table. Raises DataError."""
    table = mismatch_table(ids)
    if table:
        table = [f"{folder}: its files do not have the same ids; only those in all of them are used", *table]
    common = set.intersection(*ids.values())
    if not common:
        raise DataError("\n".join([f"{folder}: its files have no id in common", *table[1:]]))
    result.notices += table
    for id in set.union(*ids.values()) - common:
        result.dropped[id] = "not in " + ", ".join(name for name, members in ids.items() if id not in members)
    return byte_order(common)


class _Recordings:
    """The recordings of `wav.scp`. Each is looked up once, however many segments it has."""

    def __init__(self, wavs: Table, root: Path, sounds: Path) -> None:
        self.wavs, self.root, self.sounds = wavs, root, sounds
        self.found: dict[str, Stretch | AsrError] = {}
        self.archived: dict[Path, Place] = {}  # file to be written → where its sound lies

    def whole(self, id: str) -> Stretch:
        if id not in self.found:
            try:
                self.found[id] = self._find(id)
            except AsrError as error:
                self.found[id] = error
        found = self.found[id]
        if isinstance(found, AsrError):
            raise found
        return found

    def _find(self, id: str) -> Stretch:
        value, where = self.wavs[id]
        place = parse(value, self.root, where)
        if place.offset is None:
            if not place.path.exists() and not Path(value).is_absolute():
                raise DataError(f"{where}: no file {place.path}; --root says what relative paths are relative to")
            return Stretch(place.path, channel=place.channel)
        # Percent signs keep ids with a slash, and ids that differ in case alone, apart on every file system.
        name = "".join(c if c.isdigit() or c.islower() or c in "-_" else f"%{ord(c):02X}" for c in id)
        target = self.sounds / f"{name}.wav"
        self.archived[target] = place
        return Stretch(target)

    def measure(self, stretches: list[Stretch], max_overshoot: float) -> list[Measured]:
        """As `measure_audio`, of sounds that are taken out of their archives first."""
        lost: dict[Path, str] = {}
        for audio in dict.fromkeys(stretch.audio for stretch in stretches if stretch.audio in self.archived):
            try:
                extract_sound(self.archived[audio], audio)
            except AsrError as error:
                lost[audio] = str(error)
        there = iter(measure_audio([stretch for stretch in stretches if stretch.audio not in lost], max_overshoot))
        return [lost[stretch.audio] if stretch.audio in lost else next(there) for stretch in stretches]

    def segment(self, line: Field) -> Stretch:
        """`RECORDING START END [CHANNEL]`, in seconds; an END of -1 is the end of the recording."""
        fields = line.value.split()
        try:
            start, end = (float(field) for field in fields[1:3])
            channel = int(fields[3]) if len(fields) == 4 else None
            if len(fields) > 4 or not (math.isfinite(start) and math.isfinite(end)) or start < 0:
                raise ValueError
        except ValueError:
            raise DataError(
                f"{line.where}: RECORDING, START and END in seconds and perhaps a channel are expected, "
                f"got {line.value!r}"
            ) from None
        if fields[0] not in self.wavs:
            raise DataError(f"{line.where}: recording {fields[0]!r} is not in wav.scp")
        if end != -1 and end <= start:
            raise DataError(f"{line.where}: the segment starts at {start:g} s and ends at {end:g} s")
        whole = self.whole(fields[0])
        return replace(
            whole, start=start, end=None if end == -1 else end, channel=whole.channel if channel is None else channel
        )
