"""Kaldi data directories in and out, without Kaldi: pipes are never run, files are read by id, written in byte order.

    python tools/prepare_kaldi.py import train=data/train_si284 dev=data/test_dev93 --out data
    python tools/prepare_kaldi.py export data/dev.jsonl --out kaldi/dev

`import` reads wav.scp, text, segments, utt2spk and spk2utt and writes SET.jsonl and a report. Entries of wav.scp may be
files of any format, `file.ark:offset`, or `sph2pipe -f wav -p -c 1 FILE |`, which is understood and read without
running anything. `export` writes one manifest as a data directory; with `--features data/features/FINGERPRINT`, the
folder of a feature store, feats.ark and feats.scp too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import prepare_common as common
from kaldi.features import export_features, import_features
from kaldi.read import read_data_dir
from kaldi.write import write_data_dir
from prepare_shards import Shards, add_options

from asr.data.audio_stats import AudioStats
from asr.data.lexicon import read_lexicon
from asr.data.manifest import Utterance, read_manifest
from asr.data.store import FeatureStore
from asr.errors import DataError
from asr.wording import counted

MAX_OVERSHOOT = 0.5  # seconds; what Kaldi's extract-segments allows


def main() -> None:
    args = _parse()
    if args.command == "import":
        _import(args)
    else:
        _export(args)


def _import(args: argparse.Namespace) -> None:
    shards = Shards(args)
    sets: dict[str, list[Utterance]] = {}
    stats: dict[str, AudioStats] = {}
    dropped: dict[str, str] = {}
    notices: list[str] = []
    folders = _folders(args.sets)
    for name, folder in folders.items():
        print(f"reading {folder} ...", file=sys.stderr)
        part = read_data_dir(folder, args.root, args.out / "wav" / name, args.max_overshoot, shards.measure)
        differ = [id for id, s in part.stats.items() if id in stats and stats[id].digest != s.digest]
        if differ:
            notices.append(f"{len(differ)} ids of {name} stand for other audio in another set, such as {differ[0]}")
        sets[name] = part.utterances
        stats = part.stats | stats
        dropped |= part.dropped
        notices += part.notices
    if not shards.finish():
        return
    lexicon = read_lexicon(args.lexicon, "keep") if args.lexicon else None
    common.write_sets(args.out, sets, lexicon, dropped, shards, stats, notices)
    if args.features:
        for name, folder in folders.items():
            print(import_features(folder / "feats.scp", args.root, args.out / "kaldi_features" / name))


def _folders(arguments: list[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, given, path = argument.partition("=")
        folder = Path(path if given and "/" not in name else argument)
        name = name if given and "/" not in name else folder.absolute().name
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
        if name in folders:
            raise DataError(f"two sets are called {name!r}: write NAME={folder}")
        folders[name] = folder
    return folders


def _export(args: argparse.Namespace) -> None:
    store = FeatureStore(args.features) if args.features else None
    done = write_data_dir(args.out, read_manifest(args.manifest), speaker_prefix=args.speaker_prefix)
    written, anew = counted(len(done.ids), "utterance"), counted(done.converted, "recording")
    print(f"{written} written to {args.out}, {anew} written anew as 16-bit WAV")
    print(f"dropped: {counted(len(done.dropped), 'utterance')}")
    for id, reason in sorted(done.dropped.items()):
        print(f"  {id}: {reason}")
    if store is not None:
        print(export_features(store, done.ids, args.out))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    read = commands.add_parser("import", help="data directories to manifests")
    read.add_argument(
        "sets", nargs="+", metavar="[NAME=]DIR", help="data directory; without NAME the set is called DIR"
    )
    read.add_argument("--out", type=Path, required=True, help="folder to write manifests and report to")
    read.add_argument("--root", type=Path, default=Path(), help="relative paths in wav.scp start here (default: here)")
    read.add_argument("--lexicon", type=Path, help="lexicon.txt with a pronunciation a line; copied, words counted")
    read.add_argument(
        "--max-overshoot",
        type=common.seconds,
        default=MAX_OVERSHOOT,
        help=f"seconds a segment may pass the end of its recording by, and is cut there (default {MAX_OVERSHOOT})",
    )
    read.add_argument(
        "--features",
        action="store_true",
        help="feats.scp too, as a feature store in OUT/kaldi_features, to look at: training computes its own",
    )
    add_options(read)
    write = commands.add_parser("export", help="a manifest to a data directory")
    write.add_argument("manifest", type=Path)
    write.add_argument("--out", type=Path, required=True, help="data directory to write")
    write.add_argument("--speaker-prefix", action="store_true", help="put SPEAKER- before ids that lack it")
    write.add_argument("--features", type=Path, help="folder of a feature store: write feats.ark and feats.scp too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(common.run(main))
