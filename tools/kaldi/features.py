"""Kaldi's feature archives as a feature store (`asr.data.store`), to compare with or to look at, and back."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from asr.data.store import FORMAT, FeatureStore
from asr.errors import DataError
from kaldi.archives import read_matrix
from kaldi.rxfilename import parse
from kaldi.tables import byte_order, read_table, write_table


def import_features(scp: Path, root: Path, folder: Path) -> str:
    """Write the matrices of `feats.scp` to `folder`, where `FeatureStore(folder)` opens them; says what was done.

    A matrix that cannot be read is in the store's `failed` with its reason. Raises DataError if none can, or if they
    do not all have the same width.
    """
    table = read_table(scp)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    where: dict[str, tuple[int, int]] = {}
    failed: dict[str, str] = {}
    total, dim = 0, 0
    try:
        with open(unfinished / "features.f32", "wb") as file:
            for id in byte_order(table):
                try:
                    matrix = read_matrix(parse(table[id].value, root, table[id].where))
                    if dim and matrix.shape[1] != dim:
                        raise DataError(f"{table[id].where}: {matrix.shape[1]} values a frame, those before have {dim}")
                except DataError as error:
                    failed[id] = str(error)
                    continue
                dim = matrix.shape[1]
                file.write(np.ascontiguousarray(matrix, "<f4").data)
                where[id] = (total, len(matrix))
                total += len(matrix)
        if not where:
            raise DataError(f"{scp}: no matrix can be read; the first: {next(iter(failed.values()), 'none')}")
        index = {"format": FORMAT, "dim": dim, "av": True, "utterances": where, "failed": failed}
        (unfinished / "index.json").write_text(json.dumps(index, ensure_ascii=False), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    store = FeatureStore(folder)
    lines = [f"features: {len(store)} matrices, {total} frames of {store.dim} values in {folder}, {len(failed)} failed"]
    return "\n".join(lines + [f"  {id}: {reason}" for id, reason in failed.items()])


def export_features(store: FeatureStore, ids: Mapping[str, str], folder: Path) -> str:
    """Write features as `feats.ark` (float matrices, as stored: without CMVN) and `feats.scp`; says what was done.

    `ids`: id to write → id in the store. Ids that the store lacks are left out and listed. Raises DataError if it
    lacks all.
    """
    archive = folder.absolute() / "feats.ark"
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    known = [id for id in byte_order(ids) if ids[id] in store]
    missing = [id for id in byte_order(ids) if ids[id] not in store]
    if not known:
        raise DataError(f"{store.folder}: holds the features of none of these {len(missing)} utterances")
    rows: dict[str, str] = {}
    try:
        with open(unfinished, "wb") as file:
            for id in known:
                matrix = np.ascontiguousarray(store[ids[id]].numpy(), "<f4")
                file.write(f"{id} ".encode())
                rows[id] = f"{archive}:{file.tell()}"
                file.write(b"\0BFM " + struct.pack("<bibi", 4, len(matrix), 4, store.dim) + matrix.tobytes())
        os.replace(unfinished, archive)
    finally:
        unfinished.unlink(missing_ok=True)
    write_table(folder / "feats.scp", rows)
    lines = [f"features: {len(rows)} matrices of {store.dim} values a frame in {archive}, {len(missing)} missing"]
    return "\n".join(lines + [f"  {id}: not in {store.folder}" for id in missing])
