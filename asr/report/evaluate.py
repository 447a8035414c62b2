"""Scores a trained model on sets of utterances and writes what came out into the experiment folder."""

from __future__ import annotations

import json
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from asr.ctc.greedy import greedy_decode
from asr.ctc.pronunciations import best_reference
from asr.ctc.score import Score, match, score
from asr.data.config import PhonesConfig, SubwordsConfig
from asr.data.manifest import Utterance, read_manifest
from asr.data.text import split_words
from asr.data.tokens import OovError, PhoneTable
from asr.files import write_atomically
from asr.recipe import Recipe
from asr.recipe_options import combinations, short
from asr.recogniser import Recogniser
from asr.report.listing import listing, other_function
from asr.report.sets import choose_sets, open_set
from asr.train.measure import Stopwatch
from asr.train.run import pick_device
from asr.train.sets import LoadedSet
from asr.wording import counted

log = logging.getLogger(__name__)


@dataclass
class Decoded:
    """What the model made of a set: token ids by utterance, and how it got there."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    frames: int = 0  # encoder frames
    blanks: int = 0  # of them, those where blank is the likeliest
    seconds: float = 0.0  # of model and greedy decoding, from features in memory to token ids, warm-up excluded


def evaluate(
    exp: str | Path,
    *,
    sets: Sequence[str] | None = None,
    manifests: Sequence[Path] = (),
    device: str = "auto",
    pronunciations: Literal["first", "best"] | None = None,
    reporting: Recipe | None = None,
    options: Sequence[str] = (),
    write: bool = True,
) -> dict[str, dict[str, Any]]:
    """Score an experiment; returns the content of `results/SET.json` by set.

    Each result holds the totals of `Score.as_dict`, `words` (the word error rate of subwords and characters, else
    null), `failed` and `dropped` (id → reason), `blank_share` (of encoder frames), `length_ratio` (emitted to
    reference tokens), `weights` (of which epochs), `audio_seconds`, `decoding_seconds`, `rtf`, `device`, `threads`,
    `options` and `changes` (what they made other than was trained).

    An utterance whose audio cannot be used counts with all its tokens deleted, so that no rate improves by losing
    data. An utterance that the lexicon cannot express (`oov: drop`) has no reference and is left out. Both are listed.

    Args:
        exp: experiment folder, or a checkpoint in it.
        sets: `dev`, names of test sets, or `all`; None: all test sets, or dev where the recipe has none.
        manifests: further sets, named after their file's stem.
        pronunciations: instead of the recipe's `scoring.pronunciations`.
        reporting: a recipe whose `scoring` and `data.test` hold instead of those the model was trained with.
        options: what the model should do otherwise than it was trained; see `asr.recipe_options`.
        write: write results/SET.json and results/SET.txt, with options SET@OPTIONS.json and .txt.

    Raises:
        DataError: an unknown set, an unreadable manifest, or a set without any usable utterance.
    """
    recogniser = Recogniser.load(exp, device=pick_device(device), options=options)
    if recogniser.changes:
        log.warning("%s: %s", " ".join(options), other_function(recogniser.changes))
    folder = Path(exp).parent if Path(exp).is_file() else Path(exp)
    if reporting is not None:
        data = recogniser.recipe.data.model_copy(update={"test": reporting.data.test})
        recogniser.recipe = recogniser.recipe.model_copy(update={"scoring": reporting.scoring, "data": data})
    if pronunciations is not None:
        scoring = recogniser.recipe.scoring.model_copy(update={"pronunciations": pronunciations})
        recogniser.recipe = recogniser.recipe.model_copy(update={"scoring": scoring})
    chosen = choose_sets(recogniser.recipe, sets, manifests)
    if recogniser.recipe.training.threads:
        torch.set_num_threads(recogniser.recipe.training.threads)  # as in training, so that times belong together
    results = {}
    for name, manifest in chosen.items():
        result, scores = _evaluate_set(recogniser, name, manifest)
        result |= {"options": list(options), "changes": recogniser.changes}
        results[name] = result
        for kind in ("failed", "dropped"):
            if result[kind]:
                log.warning(
                    "%s: %s %s: %s", name, counted(len(result[kind]), "utterance"), kind, ", ".join([*result[kind]][:5])
                )
        if write:
            (folder / "results").mkdir(exist_ok=True)
            text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
            stem = f"{name}@{_file_name(options)}" if options else name
            write_atomically(folder / "results" / f"{stem}.json", text)
            write_atomically(folder / "results" / f"{stem}.txt", listing(result, scores))
    return results


def _file_name(options: Sequence[str]) -> str:
    """Options as part of a file's name; what some system would not allow there becomes `_`."""
    return re.sub(r"[^\w.=+-]", "_", "+".join(short(options)))


def evaluate_options(exp: str | Path, options: Sequence[str], **how: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Score a model as it was trained, and with every combination of options, `attention.rounds=1,2,4,8`.

    Returns the results of `evaluate` by combination, `as trained` first. That one is not written. `how`: the other
    arguments of `evaluate`.

    Raises:
        RecipeError, DataError: as `evaluate`; before anything is scored where an option does not fit the weights.
    """
    variants = combinations(options)
    for variant in variants:
        Recogniser.load(exp, options=variant)
    results = {"as trained": evaluate(exp, **how, write=False)}
    for variant in variants:
        log.info("evaluating with %s", " ".join(variant))
        results[" ".join(short(variant))] = evaluate(exp, **how, options=variant)
    return results


def _evaluate_set(recogniser: Recogniser, name: str, manifest: Path) -> tuple[dict[str, Any], list[Score]]:
    recipe, tokens = recogniser.recipe, recogniser.tokens
    with open_set(recogniser, name, manifest) as data:
        decoded = _decode_timed(recogniser, data)
    failed = {id: reason for id, reason in data.dropped.items() if id in data.store.failed}
    listed = {u.id: u for u in read_manifest(manifest)}
    targets = dict(zip(data.ids, data.targets, strict=True))
    for id in failed:
        with suppress(OovError):  # no reference either: it stays among the dropped
            targets[id] = tokens.encode(listed[id])
    utterances = [listed[id] for id in targets]
    scores = _score(recogniser, utterances, targets, decoded.ids)
    audio = sum(data.frames) * recipe.features.hop_ms / 1000
    result = {
        "set": name,
        "manifest": str(manifest),
        "model": recipe.name,
        "weights": recogniser.weights,
        **scores[0].as_dict(),
        "words": scores[1].as_dict() if len(scores) > 1 else None,
        "failed": failed,
        "dropped": {id: reason for id, reason in data.dropped.items() if id not in targets},
        "blank_share": decoded.blanks / decoded.frames if decoded.frames else None,
        "length_ratio": scores[0].hypothesis_tokens / scores[0].reference_tokens
        if scores[0].reference_tokens
        else None,
        "audio_seconds": audio,
        "decoding_seconds": decoded.seconds,
        "rtf": decoded.seconds / audio if audio else None,
        "device": str(recogniser.device),
        "threads": torch.get_num_threads(),
    }
    return result, scores


def _decode_timed(recogniser: Recogniser, data: LoadedSet) -> Decoded:
    """Decode a set; a short one several times, since a fraction of a second measures the machine's other work too."""
    passes = [_decode(recogniser, data)]
    while len(passes) < 5 and sum(one.seconds for one in passes) < 1.0:
        passes.append(_decode(recogniser, data))
    passes[0].seconds = statistics.median(one.seconds for one in passes)
    return passes[0]


@torch.inference_mode()
def _decode(recogniser: Recogniser, data: LoadedSet) -> Decoded:
    model, out = recogniser.model.eval(), Decoded()
    stopwatch = Stopwatch(recogniser.device)
    batches = data.batches_by_length(recogniser.recipe.training.frames_per_batch)
    warm = data.batch(batches[-1]).to(recogniser.device)  # the shortest: the first call pays for what later ones do not
    model(warm.features, warm.lengths)
    for rows in batches:
        batch = data.batch(rows).to(recogniser.device)
        with stopwatch("decoding"):
            log_probs, lengths = model(batch.features, batch.lengths)
            best = greedy_decode(log_probs, lengths, blank=recogniser.tokens.blank)
        out.ids |= {id: [token.id for token in row] for id, row in zip(batch.ids, best, strict=True)}
        real = torch.arange(log_probs.shape[1], device=lengths.device) < lengths[:, None]
        out.blanks += int(((log_probs.argmax(-1) == recogniser.tokens.blank) & real).sum())
        out.frames += int(lengths.sum())
    stopwatch.settle()
    out.seconds = stopwatch.seconds["decoding"]
    return out


def _score(
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    targets: Mapping[str, list[int]],
    hypotheses: Mapping[str, list[int]],
) -> list[Score]:
    """The rate over tokens and, where tokens spell words, the rate over words against the transcript itself."""
    recipe, tokens = recogniser.recipe, recogniser.tokens
    phones = isinstance(recipe.tokens, PhonesConfig)
    unit = "PER" if phones else "TER" if isinstance(recipe.tokens, SubwordsConfig) else "CER"
    heard = {id: tokens.symbols_of(ids) for id, ids in hypotheses.items()}
    references = {u.id: tokens.symbols_of(targets[u.id]) for u in utterances}
    best = recipe.scoring.pronunciations == "best" and isinstance(tokens, PhoneTable)
    if isinstance(tokens, PhoneTable) and best:
        references = {u.id: best_reference(tokens.variants(u), heard.get(u.id, [])) for u in utterances}
    pairs = match(references, heard)
    options: dict[str, Any] = {
        "ignore": recipe.scoring.ignore,
        "bootstrap": recipe.scoring.bootstrap,
        "seed": recipe.seed,
    }
    stress = recipe.tokens.stress if isinstance(recipe.tokens, PhonesConfig) else "keep"
    scores = [score(pairs, unit=unit, stress=stress, best_pronunciations=best, **options)]
    if not phones:
        words = match(
            {u.id: u.words for u in utterances},
            {id: split_words(tokens.text_of(ids)) for id, ids in hypotheses.items()},
        )
        scores.append(score(words, unit="WER", **options))
    return scores
