"""Many strings, or many lists of numbers, end to end in one array: bytes an item where Python's own take hundreds."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar, overload

import numpy as np

T = TypeVar("T")


class _Packed(Sequence[T], Generic[T]):
    """Items that are made when they are asked for; equal to any sequence of the same items."""

    _ends: array[int]  # of the items, in the one array, behind a 0; an `array` gives single numbers faster than numpy

    def _item(self, first: int, end: int) -> T:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self._item(self._ends[index], self._ends[index + 1])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class Names(_Packed[str]):
    """Strings that can be found again, about 20 bytes each beside their own.

    >>> Names(["an1", "an2"]).find("an2")
    1
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self._bytes = b"".join(encoded)
        self._ends = _ends(encoded)
        hashes = np.fromiter(map(hash, encoded), np.int64, len(encoded))
        order = np.argsort(hashes, kind="stable")
        self._order, self._hashes = array("q", order.tobytes()), array("q", hashes[order].tobytes())

    def find(self, name: str) -> int:
        """Where it stands (the first time), or -1."""
        encoded = name.encode("utf-8", "surrogatepass")
        wanted = hash(encoded)
        place = bisect_left(self._hashes, wanted)
        while place < len(self._hashes) and self._hashes[place] == wanted:
            row = self._order[place]
            if self._bytes[self._ends[row] : self._ends[row + 1]] == encoded:
                return row
            place += 1
        return -1

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) >= 0

    def _item(self, first: int, end: int) -> str:
        return self._bytes[first:end].decode("utf-8", "surrogatepass")


class Ragged(_Packed[list[int]]):
    """Lists of numbers from 0 on, in as many bytes a number as the greatest needs."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        most = max(chain.from_iterable(rows), default=0)
        self._ends = _ends(rows)
        self._numbers = np.fromiter(chain.from_iterable(rows), np.min_scalar_type(most), int(self._ends[-1]))

    def _item(self, first: int, end: int) -> list[int]:
        return self._numbers[first:end].tolist()


def _ends(items: Sequence[Sequence[object] | bytes]) -> array[int]:
    return array("q", accumulate(map(len, items), initial=0))
