"""The copy task: how fast causal models learn to repeat a random sequence, a curve for each mixer and seed.

    python tools/copy_task.py RECIPE... --out DIR [--workers N] [--retrain] [KEY=VALUE ...]

A model reads 0 w 0 w, where w is random symbols, and predicts each next symbol; loss and accuracy count the second w,
which is known to a model that remembers the first. Katharopoulos et al., "Transformers are RNNs", 2020, section 4.1
and figure 2; the task is that of Kitaev et al., "Reformer", 2020.

DIR gets table.md, curves.csv, loss.png, and runs/ with the result of each training. Trainings that runs/ has, from the
same recipe, are not repeated: after Ctrl-C the same command goes on with the next. KEY=VALUE changes all the recipes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import prepare_common as common
from copying.config import CopyConfig
from copying.report import write_report
from copying.runs import train_all

from asr.errors import UsageError
from asr.recipe_loader import load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="YAML files, and KEY=VALUE for all of them")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--workers", type=common.positive, default=os.cpu_count() or 1,
        help="trainings at a time, each on one thread (default: one a core)",
    )  # fmt: skip
    parser.add_argument("--retrain", action="store_true", help="repeat also what DIR has")
    args = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    overrides = [word for word in args.recipes if "=" in word]
    configs = [load_config(CopyConfig, path, overrides) for path in args.recipes if path not in overrides]
    if not configs:
        raise UsageError("no recipe: name a YAML file, for example recipes/copy/linear.yaml")
    names = [config.name for config in configs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two recipes are called {twice[0]!r}; their curves could not be told apart")
    runs = train_all(configs, args.out, args.workers, args.retrain)
    print(write_report(runs, args.out), end="")
    print(f"curves: {args.out / 'curves.csv'}, {args.out / 'loss.png'}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(common.run(main))
    except KeyboardInterrupt:
        print("stopped; the same command goes on after the trainings that are done", file=sys.stderr)
        sys.exit(130)
