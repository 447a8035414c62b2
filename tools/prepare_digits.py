"""Prepare digit strings from the Free Spoken Digit Dataset (8 kHz): wav/, train, dev and test.jsonl, lexicon.txt.

Single-digit recordings of one speaker are joined into strings of 3 to 7 digits with pauses of 50 to 250 ms. --data is
the dataset's repository (recordings/DIGIT_SPEAKER_TAKE.wav) or a folder with audio/DIGIT_SPEAKER_TAKE.flac. Takes 0-4
are test, as its README says, 5-9 are dev, the rest is train. The same six speakers are in all three sets: scores say
nothing about new speakers. dev and test use every recording once, train --copies times in different strings.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import wave
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import prepare_common as common
import soundfile
from prepare_shards import Shards

from asr.audio.read import audio_info
from asr.data.audio_stats import AudioStats, measure_samples
from asr.data.lexicon import make_lexicon
from asr.data.manifest import Utterance
from asr.errors import AsrError, DataError

RATE = 8000  # Hz
PRONUNCIATIONS = [
    ("ZERO", "Z IH1 R OW0"),
    ("ZERO", "Z IY1 R OW0"),
    ("ONE", "W AH1 N"),
    ("TWO", "T UW1"),
    ("THREE", "TH R IY1"),
    ("FOUR", "F AO1 R"),
    ("FIVE", "F AY1 V"),
    ("SIX", "S IH1 K S"),
    ("SEVEN", "S EH1 V AH0 N"),
    ("EIGHT", "EY1 T"),
    ("NINE", "N AY1 N"),
]
WORDS = list(dict.fromkeys(word for word, _ in PRONUNCIATIONS))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--copies", type=common.positive, default=3, help="strings each training recording is used in")
    parser.add_argument("--seed", type=common.count, default=0, help="chooses strings and pauses")
    args = parser.parse_args()
    shards = Shards(args)
    dropped: dict[str, str] = {}
    stats: dict[str, AudioStats] = {}
    sets: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    pools = sorted(_pools(common.folder(args.data), dropped).items())
    keys = [(f"{speaker}, {name}", str(args.data.absolute())) for (name, speaker), _ in pools]
    dealt = shards.share(keys, lambda mine: (_deal(*pools[i], args) for i in mine))
    for (name, speaker), found in zip((pool for pool, _ in pools), dealt, strict=True):
        for id, text, measured in found["strings"] if found else ():
            stats[id] = AudioStats(**measured)
            audio = args.out / "wav" / f"{id}.wav"
            sets[name].append(Utterance(id, audio, stats[id].seconds, speaker, text))
        dropped |= found["dropped"] if found else {}
    sets = {name: common.spread(utterances, args.limit) for name, utterances in sets.items()}
    lexicon = make_lexicon(((word, phones.split()) for word, phones in PRONUNCIATIONS), "keep")
    common.write_sets(args.out, sets, lexicon, dropped, shards, stats)


Pool = tuple[str, str]  # set, speaker


def _pools(data: Path, dropped: dict[str, str]) -> dict[Pool, list[tuple[int, Path]]]:
    """The recordings of each pool, digit and file, in the order of take and digit."""
    found = []
    for path in [*data.glob("recordings/*.wav"), *data.glob("audio/*.flac")]:
        match = re.fullmatch(r"(\d)_([^_\s]+)_(\d+)", path.stem)
        if match:
            found.append((match[2], int(match[3]), int(match[1]), path))
        else:
            dropped[path.stem] = "the name is not DIGIT_SPEAKER_TAKE"
    if not found:
        raise DataError(f"--data {data}: no recordings/*.wav and no audio/*.flac")
    pools = defaultdict(list)
    for speaker, take, digit, path in sorted(found):
        pools["test" if take < 5 else "dev" if take < 10 else "train", speaker].append((digit, path))
    return pools


def _deal(pool: Pool, files: list[tuple[int, Path]], args: argparse.Namespace) -> dict[str, Any]:
    """Write the strings of a pool: `strings`, a list of id, text and statistics, and `dropped`, id → reason."""
    recordings: list[tuple[int, np.ndarray]] = []
    dropped: dict[str, str] = {}
    for digit, path in files:
        try:
            recordings.append((digit, _samples(path)))
        except (AsrError, soundfile.LibsndfileError) as error:
            dropped[path.stem] = str(error)
    name, speaker = pool
    prefixes = [f"{speaker}-{name}{copy}" for copy in range(args.copies if name == "train" else 1)]
    strings = [string for prefix in prefixes for string in _join(recordings, args.out / "wav", prefix, args.seed)]
    return {"strings": strings, "dropped": dropped}


def _samples(path: Path) -> np.ndarray:
    info = audio_info(path)
    if info.rate != RATE or info.channels != 1:
        raise DataError(f"{path}: {info.rate} Hz, {info.channels} channels; {RATE} Hz mono is expected")
    samples, _ = soundfile.read(path, dtype="int16")
    if len(samples) != info.frames or not len(samples):
        raise DataError(f"{path}: {info.frames} samples promised, {len(samples)} found")
    return samples


def _join(
    pool: list[tuple[int, np.ndarray]], folder: Path, prefix: str, seed: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Deal the recordings of a pool, shuffled, into strings, and write each string as a WAV file."""
    key = zlib.crc32(f"{seed} {prefix}".encode())
    choice = random.Random(key)
    noise = np.random.RandomState(key)  # the one numpy generator whose stream is promised never to change
    pool = sorted(pool, key=lambda _: choice.random())
    count = 0
    folder.mkdir(parents=True, exist_ok=True)
    while pool:
        size = 3 + int(5 * choice.random())
        if len(pool) - size < 3:  # no string of one or two digits at the end
            size = len(pool) if len(pool) <= 7 else len(pool) - 3
        part, pool = pool[:size], pool[size:]
        pieces = [_pause(choice, noise)]
        for _, samples in part:
            pieces += [samples, _pause(choice, noise)]
        joined = np.concatenate(pieces)
        id = f"{prefix}-{count:03d}"
        count += 1
        with wave.open(str(folder / f"{id}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(joined.astype("<i2").tobytes())
        text = " ".join(WORDS[digit] for digit, _ in part)
        yield id, text, asdict(measure_samples(joined.astype(np.float32) / 32768, RATE))


def _pause(choice: random.Random, noise: np.random.RandomState) -> np.ndarray:
    """50 to 250 ms of noise of one 16-bit step: digital silence would be a cue that no recording has."""
    return noise.randint(-1, 2, int(RATE * (0.05 + 0.2 * choice.random()))).astype(np.int16)


if __name__ == "__main__":
    sys.exit(common.run(main))
