"""Kaldi's feature archives as a feature store (`asr.data.store`), to compare with or to look at, and back."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from asr.data.store import FeatureStore
from asr.data.store_parts import write_part
from asr.errors import DataError
from kaldi.archives import read_matrix
from kaldi.rxfilename import parse
from kaldi.tables import Table, byte_order, read_table, write_table


def import_features(scp: Path, root: Path, folder: Path) -> str:
    """Write the matrices of `feats.scp` to `folder`, where `FeatureStore(folder)` opens them; says what was done.

    A matrix that cannot be read is in the store's `failed` with its reason. Raises DataError if none can, or if they
    do not all have the same width.
    """
    table = read_table(scp)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    try:
        part = write_part(unfinished, 0, 1, _matrices(table, root))
        if len(part.failed) == len(part.ids):
            raise DataError(f"{scp}: no matrix can be read; the first: {next(iter(part.failed.values()), 'none')}")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    store = FeatureStore(folder)
    counts = f"{len(store)} matrices, {sum(part.frames)} frames of {store.dim} values"
    lines = [f"features: {counts} in {folder}, {len(store.failed)} failed"]
    return "\n".join(lines + [f"  {id}: {reason}" for id, reason in store.failed.items()])


def _matrices(table: Table, root: Path) -> Iterator[tuple[str, np.ndarray | str]]:
    dim = 0
    for id in byte_order(table):
        try:
            matrix = read_matrix(parse(table[id].value, root, table[id].where))
            if dim and matrix.shape[1] != dim:
                raise DataError(f"{table[id].where}: {matrix.shape[1]} values a frame, those before have {dim}")
        except DataError as error:
            yield id, str(error)
            continue
        dim = matrix.shape[1]
        yield id, matrix


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
