"""Make a miniature of WSJ0 and WSJ1: synthetic speech in the format, with the folders and the quirks of the real discs.

    python tools/make_fake_wsj.py FOLDER
    python tools/prepare_wsj.py --wsj0 FOLDER --wsj1 FOLDER --counts FOLDER/counts.json --out DATA

Nobody owns WSJ to test with; this proves the recipe on what is openly documented of its discs. Beside the discs stand
counts.json (utterances of each set) and texts.json (what preparation must make of each transcript).
Needs `pip install 'asr[demo]'`. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torchaudio
from demo.espeak import speak
from demo.grammar import Grammar
from demo.phonemes import phoneme_text
from demo.speakers import speakers
from demo.vocabulary import Vocabulary, load_cmudict
from fake_wsj.marks import Marked, mark
from fake_wsj.plan import Planned, plan
from fake_wsj.sphere import write_header_only, write_sphere
from fake_wsj.tree import DUPLICATED, DUPLICATES, Tree, write_indices, write_transcripts

from asr.errors import AsrError
from asr.files import write_atomically

RATE = 16000  # Hz
WORDS = range(4, 9)  # words in a sentence of the small tree: 2 to 3 s


def make_tree(root: Path, *, merged: bool = False, full: bool = False, share: float = 1.0, wv2: bool = False) -> int:
    """Write the tree into the new folder `root`; returns the number of recordings.

    full: the sizes of the real corpus (or a share of them), with recordings that are headers only.
    wv2: also the files of the second microphone, the same speech at half the level.
    """
    tree, recordings = Tree(root, merged), list(plan(full, share))
    grammar = Grammar(Vocabulary(load_cmudict()))
    texts: dict[str, Marked] = {}
    for one in recordings:
        texts[one.id] = marked = mark(_sentence(grammar, one), one.kind)
        files = [tree.file(one.disc, f"{one.path}.wv1")]
        if one.speaker == DUPLICATED and not merged:
            files.append(tree.file(DUPLICATES, f"{one.path}.wv1"))
        if full:
            files += [tree.file(one.disc, f"{one.path}.wv2")] if wv2 else []
            for file in files:
                write_header_only(file, 7 * RATE, RATE)
            continue
        samples = _say(grammar, one, marked.spoken)
        order = ">" if one.number % 3 == 0 else "<"
        for file in files:
            write_sphere(file, samples, RATE, order=order, shorten=one.number % 2 == 1)
        if wv2:
            write_sphere(tree.file(one.disc, f"{one.path}.wv2"), samples // 2, RATE)
    counts = write_indices(tree, recordings)
    write_transcripts(tree, recordings, {id: marked.raw for id, marked in texts.items()})
    write_atomically(root / "texts.json", json.dumps({id: marked.text for id, marked in texts.items()}, indent=0))
    write_atomically(root / "counts.json", json.dumps(counts, indent=1) + "\n")  # last: all the rest is there
    return len(recordings)


def _sentence(grammar: Grammar, one: Planned) -> list[str]:
    rng = np.random.default_rng((1993, one.number))
    while True:
        words = grammar.sentence(rng)
        if len(words) in WORDS:
            return words


def _say(grammar: Grammar, one: Planned, words: tuple[str, ...]) -> np.ndarray:
    voices = speakers(one.group.voices)
    speaker = voices[int(one.speaker, 36) % len(voices)]
    pronunciations = [grammar.vocabulary.pronunciations[word][0] for word in words]
    speech = speak(
        phoneme_text(words, pronunciations),
        voice=speaker.voice,
        rate=speaker.rate,
        pitch=speaker.pitch,
        pitch_range=speaker.pitch_range,
        seed=one.number + 1,
    )
    samples = torchaudio.functional.resample(torch.from_numpy(speech.samples), speech.rate, RATE).numpy()
    noise = np.random.default_rng(one.number).standard_normal(len(samples)) * 1e-3
    quiet = np.zeros(RATE // 10)  # digital silence: zero blocks of the encoder
    samples = np.concatenate([quiet, samples * 0.8 + noise, quiet])
    return np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the discs go; an older fake tree there is replaced")
    parser.add_argument("--merged", action="store_true", help="wsj0/ and wsj1/ without disc folders")
    parser.add_argument("--wv2", action="store_true", help="also the second microphone")
    parser.add_argument(
        "--full", action="store_true", help="the real numbers of utterances; recordings without samples"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes of --full")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        if args.folder.exists() and any(args.folder.iterdir()):
            if not (args.folder / "counts.json").is_file():  # never empty a folder that is not ours
                raise AsrError(f"{args.folder}: is neither empty nor a fake WSJ tree; choose another folder")
            shutil.rmtree(args.folder)
        count = make_tree(args.folder, merged=args.merged, full=args.full, share=args.share, wv2=args.wv2)
    except (AsrError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{args.folder}: {count} recordings in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
