"""Utterances → a Kaldi data directory: files in byte order, no pipes."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile

from asr.audio.read import audio_info, read_audio
from asr.data.manifest import Utterance
from asr.errors import AsrError, DataError
from kaldi.tables import byte_order, write_table


@dataclass
class Exported:
    """`ids`: as written → as in the manifest. `dropped`: id → reason. `converted`: recordings written as 16-bit WAV."""

    ids: dict[str, str] = field(default_factory=dict)
    converted: int = 0
    dropped: dict[str, str] = field(default_factory=dict)


def write_data_dir(folder: Path, utterances: Sequence[Utterance], *, speaker_prefix: bool = False) -> Exported:
    """Write `wav.scp`, `segments` (where an utterance is not a whole file), `text`, `utt2spk` and `spk2utt`.

    Kaldi itself reads 16-bit WAV only: any other recording, and one channel of several, is written as such to
    `folder/wav`, at its own rate. `speaker_prefix` puts `SPEAKER-` before ids that do not begin with their speaker.

    Raises DataError if no utterance is left, if prefixed ids clash, and if utterances sorted by id are not sorted by
    speaker too, which Kaldi's tools ask for.
    """
    result = Exported()
    named = _names(utterances, speaker_prefix)
    recordings: dict[tuple[Path, int | None], list[str]] = defaultdict(list)
    for id in byte_order(named):
        recordings[named[id].audio, named[id].extra.get("channel")].append(id)
    wavs: dict[str, str] = {}
    segments: dict[str, str] = {}
    for (audio, channel), ids in recordings.items():
        try:
            whole = len(ids) == 1 and _is_whole(named[ids[0]])
            name = ids[0] if whole else _recording_name(audio, channel)
            wavs[name] = _wav(audio, channel, folder / "wav" / f"{name}.wav", result)
        except AsrError as error:
            result.dropped |= dict.fromkeys(ids, str(error))
            continue
        for id in [] if whole else ids:
            u = named[id]
            segments[id] = f"{name} {_seconds(u.start)} {_seconds(u.start + u.duration)}"
    kept = {id: u for id, u in named.items() if id not in result.dropped}
    if not kept:
        raise DataError(
            f"{folder}: no utterance could be written; first: {next(iter(result.dropped.values()), 'none')}"
        )
    if segments:  # then every utterance is one
        segments |= {id: f"{id} 0 {_seconds(kept[id].duration)}" for id in kept if id not in segments}
    result.ids = {id: u.id for id, u in kept.items()}
    speakers: dict[str, list[str]] = defaultdict(list)
    for id in byte_order(kept):
        speakers[kept[id].speaker].append(id)
    write_table(folder / "wav.scp", wavs)
    write_table(folder / "text", {id: " ".join(u.words) for id, u in kept.items()})
    write_table(folder / "utt2spk", {id: u.speaker for id, u in kept.items()})
    write_table(folder / "spk2utt", {speaker: " ".join(ids) for speaker, ids in speakers.items()})
    if segments:
        write_table(folder / "segments", segments)
    else:
        (folder / "segments").unlink(missing_ok=True)
    return result


def _names(utterances: Sequence[Utterance], speaker_prefix: bool) -> dict[str, Utterance]:
    named: dict[str, Utterance] = {}
    for u in utterances:
        id = u.id if not speaker_prefix or u.id.startswith(u.speaker) else f"{u.speaker}-{u.id}"
        if id in named:
            raise DataError(f"utterance {id!r} stands twice, once with its speaker as a prefix")
        named[id] = u
    order = byte_order(named)
    for before, after in itertools.pairwise(order):
        if named[before].speaker.encode() > named[after].speaker.encode():
            hint = "rename the speakers" if speaker_prefix else "--speaker-prefix puts the speaker before each id"
            raise DataError(
                f"sorted by id, {before!r} of speaker {named[before].speaker!r} comes before {after!r} of "
                f"{named[after].speaker!r}: Kaldi wants the same order by speaker; {hint}"
            )
    return named


def _is_whole(utterance: Utterance) -> bool:
    info = audio_info(utterance.audio)
    frames = len(read_audio(utterance.audio).samples) if info.estimated else info.frames
    return utterance.start == 0 and round(utterance.duration * info.rate) >= frames


def _recording_name(audio: Path, channel: int | None) -> str:
    """Readable, and different for files of the same name in different folders."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in audio.stem)
    return f"{stem}-{hashlib.sha256(f'{audio.absolute()} {channel}'.encode()).hexdigest()[:8]}"


def _wav(audio: Path, channel: int | None, target: Path, result: Exported) -> str:
    """What `wav.scp` says: the file itself if Kaldi reads it and its name has no other meaning, else a copy."""
    path = str(audio.absolute())
    plain = not (path.endswith(("|", "]", " ")) or path != " ".join(path.split()) or path.rpartition(":")[2].isdigit())
    if plain and _kaldi_reads(audio):
        return path
    decoded = read_audio(audio, channel=channel)
    samples = np.round(decoded.samples.numpy().astype(np.float64) * 32768).clip(-32768, 32767).astype(np.int16)
    target.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(target, samples, decoded.rate, "PCM_16")
    result.converted += 1
    return str(target.absolute())


def _kaldi_reads(audio: Path) -> bool:
    try:
        info = soundfile.info(audio)
    except (soundfile.SoundFileError, RuntimeError):
        return False
    return (info.format, info.subtype, info.channels) == ("WAV", "PCM_16", 1)


def _seconds(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
