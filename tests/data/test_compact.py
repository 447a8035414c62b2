from __future__ import annotations

import pytest

from asr.data.compact import Names, Ragged


@pytest.mark.parametrize("items", [[], ["a"], ["", "b", "é", "日本", "a" * 1000, "\ud800", "b-2"]])
def test_names_are_the_strings_and_find_each(items):
    names = Names(iter(items))
    assert names == items
    assert list(names) == items
    assert [names.find(item) for item in items] == list(range(len(items)))
    assert names.find("c") == -1
    assert "c" not in names
    assert names[1:3] == items[1:3]
    assert names != [*items, "c"]


def test_names_whose_hashes_are_equal_are_told_apart(monkeypatch):
    monkeypatch.setattr("asr.data.compact.hash", lambda _: 7, raising=False)
    names = Names(["a", "b", "c"])
    assert [names.find(name) for name in "abcd"] == [0, 1, 2, -1]


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [], [255]], [[3], [256, 70000]]])
def test_ragged_rows_are_the_lists(rows):
    packed = Ragged(rows)
    assert packed == rows
    assert repr(packed) == repr(rows)
    with pytest.raises(IndexError):
        packed[len(rows)]
    if rows:
        assert packed[-1] == rows[-1]
        assert all(type(n) is int for row in packed for n in row)
