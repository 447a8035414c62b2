"""Equal batches for all models of a comparison, where recipes leave their size to the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from asr.errors import AsrError
from asr.report.experiments import Experiment

log = logging.getLogger(__name__)


def one_size(
    experiments: Sequence[Experiment], retrain: bool, find: Callable[[Experiment], int]
) -> tuple[list[Experiment], dict[str, str]]:
    """The experiments with one number in place of `training.batch_frames: auto`; and by name, why one has none.

    It is the smallest of what each of them can take, and of the numbers of the others: those that stand in recipes, and
    those of trainings that are done or under way.

    Args:
        find: what a model can take, measured; raises AsrError where nothing fits.
    """
    sizes = {one.name: one.batch_frames(retrain) for one in experiments}
    errors: dict[str, str] = {}
    unsettled = [one for one in experiments if sizes[one.name] is None and one.recipe_file]
    if not unsettled or len(experiments) == 1:  # whose training finds it, alone
        return list(experiments), errors
    for one in unsettled:
        try:
            log.info("what size of batch fits %s?", one.name)
            sizes[one.name] = find(one)
        except AsrError as error:
            errors[one.name] = str(error)
    known = {name: frames for name, frames in sizes.items() if frames is not None}
    common = min(known.values(), default=None)
    if common is not None:
        log.info(
            "batches of %s frames for all that leave it open, the least of: %s",
            f"{common:,}", ", ".join(f"{name} {frames:,}" for name, frames in known.items()),
        )  # fmt: skip
    return [_settled(one, common) if one in unsettled else one for one in experiments], errors


def _settled(one: Experiment, frames: int | None) -> Experiment:
    if frames is None:
        return one
    more = f"training.batch_frames.found={frames}"
    return replace(one, recipe=one.recipe.settled(frames), overrides=(*one.overrides, more))
