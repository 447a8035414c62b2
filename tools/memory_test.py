"""Does the memory of a training stay flat over epochs, however many utterances there are?

    python tools/memory_test.py --utterances 300000 --epochs 3 --out DIR

Makes a manifest and a feature store of so many short utterances of noise (no audio is read), trains a model of one tiny
layer on them and prints, at the start and after every epoch, the resident memory of each process without the pages of
the feature file, which all processes of a machine share and the system may drop, and the files it holds open. Under
torchrun every process says its own. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr.cli.stderr import log_to_stderr
from asr.data.manifest import Utterance, read_manifest, write_manifest
from asr.data.store_parts import write_part
from asr.recipe import Recipe
from asr.recipe_loader import load_recipe
from asr.train import loop
from asr.train.sets import plan_stores
from asr.train.world import this_rank

RECIPE = """
exp: exp
seed: 1
data: {train: train.jsonl, dev: dev.jsonl}
features: {bins: 16, cmvn: global}
model:
  frontend: {kind: stack, factor: 3}
  encoder: {kind: transformer, layers: 1, dim: 16, heads: 2, feedforward: 16, attention: {kind: linear}}
training: {batch_frames: 20000, threads: 1, device: cpu, tensorboard: false}
"""
FRAMES = 24


def main() -> int:
    args = _parse()
    file = args.out / "memory.yaml"
    if this_rank() == 0 and not file.exists():
        make(args.out, args.utterances)
        file.write_text(RECIPE, encoding="utf-8")
    recipe = load_recipe(file, [f"training.epochs={args.epochs}", *args.overrides])
    _say("program loaded")
    real = loop._end_epoch

    def end_epoch(run: Any, state: Any, stop: Any) -> None:
        real(run, state, stop)
        _say(f"after epoch {state.counters.epoch}, {len(state.train.ids)} utterances")

    loop._end_epoch = end_epoch
    try:
        with log_to_stderr():
            loop.train(recipe, overwrite=True)
    finally:
        loop._end_epoch = real
    return 0


def make(out: Path, count: int) -> None:
    """Manifests of `count` training and 100 dev utterances, and the feature stores that a training will look for."""
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, size in {"train": count, "dev": 100}.items():
        texts = (" ".join(random.choice(list("ABCD"), 3).tolist()) for _ in range(size))
        utterances = (
            Utterance(f"{name}{n:07d}", out / f"{n}.wav", FRAMES / 100, f"s{n % 50}", text, phones=tuple(text.split()))
            for n, text in enumerate(texts)
        )
        write_manifest(out / f"{name}.jsonl", utterances)
    (out / "memory.yaml").write_text(RECIPE, encoding="utf-8")
    recipe: Recipe = load_recipe(out / "memory.yaml")
    (out / "memory.yaml").unlink()
    for name in ("train", "dev"):
        (plan,) = plan_stores(recipe, read_manifest(out / f"{name}.jsonl"), dither=name == "train").values()

        def noise(part: Sequence[Utterance]) -> Iterator[tuple[str, np.ndarray]]:
            for utterance in part:
                yield utterance.id, random.normal(size=(FRAMES, recipe.features.dim))

        for number in range(plan.count):
            write_part(plan.folder, number, plan.count, noise(plan.part(number)))


def _say(when: str) -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    own, shared = (int(status[key].split()[0]) // 1024 for key in ("RssAnon", "RssFile"))
    files = len(os.listdir("/proc/self/fd"))
    print(f"rank {this_rank()} {when}: {own} MB of its own, {shared} MB of files, {files} open files", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="changes to the recipe: key.sub=value")
    parser.add_argument("--utterances", type=int, default=300_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="folder for the data, made once, and the training")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
