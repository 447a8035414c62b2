"""Which ids the files of a data directory do not have in common, and by what pattern they miss each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kaldi.tables import byte_order

# What people do to ids on the way from one file to the other; each makes both spellings equal.
_SPELLINGS: list[tuple[str, Callable[[str], str]]] = [
    ("upper and lower case differ", str.lower),
    (
        "one has a file name extension",
        lambda id: re.sub(r"\.(wav|flac|sph|wv[12]|mp3|ogg|opus|m4a)$", "", id, flags=re.I),
    ),
    ("one has a folder before the name", lambda id: id.rpartition("/")[2]),
    ("'-' and '_' differ", lambda id: id.replace("_", "-")),
    ("leading zeros of numbers differ", lambda id: re.sub(r"\d+", lambda m: m[0].lstrip("0") or "0", id)),
]


def mismatch_table(ids: Mapping[str, set[str]]) -> list[str]:
    """A line per file (name → ids) with what it lacks and what others lack, and hints. Empty if all ids agree."""
    common = set.intersection(*ids.values())
    everything = set.union(*ids.values())
    if common == everything:
        return []
    rows = [["file", "ids", "in all files", "not in all", "e.g."]]
    for name, members in ids.items():
        alone = byte_order(members - common)
        rows.append([name, str(len(members)), str(len(common)), str(len(alone)), ", ".join(alone[:2])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    names = list(ids)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            hint = _hint(ids[a] - ids[b], ids[b] - ids[a])
            if hint:
                lines.append(f"  {a} and {b}: {hint}")
    return lines


def _hint(left: set[str], right: set[str]) -> str | None:
    """The pattern that pairs at least half of the smaller side's ids."""
    need = (min(len(left), len(right)) + 1) // 2
    if need == 0:
        return None
    for what, spell in _SPELLINGS:
        other = {spell(id): id for id in right}
        pairs = [(id, other[spell(id)]) for id in byte_order(left) if spell(id) in other]
        if len(pairs) >= need:
            return f"{what}: {pairs[0][0]} and {pairs[0][1]} ({len(pairs)} pairs)"
    for side, shorter, longer in (("second", left, right), ("first", right, left)):
        tails = {id[match.end() :]: id for id in longer for match in re.finditer(r"[-_/]", id)}
        pairs = [(id, tails[id]) for id in byte_order(shorter) if id in tails]
        if len(pairs) >= need:
            prefixes = {long.removesuffix(short) for short, long in pairs}
            kind = f"the prefix {prefixes.pop()!r}" if len(prefixes) == 1 else "a prefix, the speaker it seems"
            return f"the {side} has {kind}: {pairs[0][0]} and {pairs[0][1]} ({len(pairs)} pairs)"
    return None
