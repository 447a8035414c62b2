"""All trainings of a comparison: several at a time, each kept as it ends, none repeated."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from asr.files import write_atomically
from copying.config import CopyConfig
from copying.report import Run
from copying.training import train


def train_all(configs: Sequence[CopyConfig], out: Path, workers: int, retrain: bool = False) -> list[Run]:
    """Train what `out` does not have yet: one seed of every model, then the next. Returns all runs, model by model.

    Args:
        workers: trainings at a time, each in a process of its own on one thread.
        retrain: repeat also what `out` has.

    Raises:
        AsrError: a loss is not finite.
    """
    jobs = [(config, seed) for config in configs for seed in config.seeds]
    results = {} if retrain else {i: found for i, job in enumerate(jobs) if (found := _read(out, *job)) is not None}
    if results:
        print(f"{len(results)} of {len(jobs)} trainings are done already", file=sys.stderr)
    todo = [i for i in range(len(jobs)) if i not in results]
    todo.sort(key=lambda i: jobs[i][0].seeds.index(jobs[i][1]))  # stopped early, there is still something to compare
    if todo:
        # Spawned: a forked child would inherit torch's threads in whatever state they are.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=_start)
        try:
            futures = {pool.submit(_timed, *jobs[i]): i for i in todo}
            for future in as_completed(futures):
                i = futures[future]
                results[i] = future.result()
                write_atomically(_place(out, *jobs[i]), json.dumps({**_key(*jobs[i]), "result": results[i]}) + "\n")
        except BaseException:  # also Ctrl-C: nobody wants to wait for trainings whose end nobody sees
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        pool.shutdown()
    return [Run(config.name, seed, results[i]) for i, (config, seed) in enumerate(jobs)]


def _start() -> None:
    """In a worker: a core is one training's; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


def _timed(config: CopyConfig, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    result = train(config, seed)
    score = f"test loss {result['test_loss']:.2g}, {100 * result['test_accuracy']:.2f} % right"
    print(f"{config.name}, seed {seed}: {score}, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return result


def _place(out: Path, config: CopyConfig, seed: int) -> Path:
    return out / "runs" / f"{config.name}-{seed}.json"


def _key(config: CopyConfig, seed: int) -> dict[str, Any]:
    """What a result depends on."""
    return {"recipe": config.model_dump(mode="json", exclude={"seeds"}), "seed": seed, "torch": torch.__version__}


def _read(out: Path, config: CopyConfig, seed: int) -> dict[str, Any] | None:
    """The result of an earlier training of the same recipe, if there is one."""
    path = _place(out, config, seed)
    if not path.is_file():
        return None
    kept = json.loads(path.read_text("utf-8"))
    result = kept.pop("result")
    return result if kept == _key(config, seed) else None
