"""asr.yaml_tree: YAML 1.2 scalars, lines, and what is refused."""

from pathlib import Path

import pytest

from asr.errors import RecipeError
from asr.yaml_tree import Mapping, find, parse_yaml, plain, read_yaml


def value(text):
    return plain(parse_yaml(text, "x.yaml", Path("/base")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4", 1e-4),
        ("1e4", 10000),
        (".5", 0.5),
        ("-1.5E+2", -150),
        ("1.", 1),
        ("-7", -7),
        ("true", True),
        ("~", None),
        ("", None),
        ("NO", "NO"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("True", "True"),
        ("012", "012"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        (".inf", ".inf"),
        ("2024-01-01", "2024-01-01"),
        ("'0.1'", "0.1"),
        ('"true"', "true"),
        ("9" * 5000, "9" * 5000),
        ("[1, a, {b: NO}]", [1, "a", {"b": "NO"}]),
        ("{1: a, null: b}", {"1": "a", "null": "b"}),
    ],
)
def test_scalars(text, expected):
    got = value(text)
    assert got == expected
    assert isinstance(got, type(expected))


def test_strings_remember_their_folder():
    assert value("a/b").base == Path("/base")


def test_lines_are_those_of_the_keys():
    tree = parse_yaml("a:\n  b:\n    - 1\n    - 2\n  c: >\n    x\n", "x.yaml", Path())
    assert [find(tree, keys).where for keys in [("a",), ("a", "b"), ("a", "b", 1), ("a", "c"), ("a", "nope")]] == [
        "x.yaml:1",
        "x.yaml:2",
        "x.yaml:4",
        "x.yaml:5",
        "x.yaml:1",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "x.yaml:1: the file is empty"),
        ("# nothing\n", "x.yaml:1: the file is empty"),
        ("- a\n- b\n", "x.yaml:1: a list at the top"),
        ("a\n", "x.yaml:1: a single value at the top"),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: a: given twice, first at {folder}/x.yaml:1"),
        ("t:\n  a: 1\n  'a': 3\n", "x.yaml:3: t.a: given twice"),
        ("a:\n\tb: 1\n", "x.yaml:2: invalid YAML: a tab where YAML wants spaces"),
        ("a: 1\n  b: [\n", "x.yaml:2: invalid YAML"),
        ("a: {b: 1\n", "x.yaml:1: invalid YAML: a bracket that is not closed"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: invalid YAML"),
        ("a: &x {b: 1}\nc: *x\n", "x.yaml:2: invalid YAML: alias *x: write the value out"),
        ("a: 1\nb: !!python/object/apply:os.system [echo]\n", "x.yaml:2: b: YAML tags such as !!python/object"),
        ("a: !!float 1\n", "x.yaml:1: a: YAML tags such as !!float"),
        ("[a]: 1\n", "x.yaml:1: a key must be a single word"),
        ("a: 1\nb: \x07\n", "x.yaml:2: invalid YAML: character"),
        ("a: " + "[" * 3000, "x.yaml: invalid YAML: nested too deeply"),
        (b"a: \xff\n", "x.yaml: not UTF-8"),
        (None, "x.yaml: cannot be read: No such file"),
    ],
)
def test_refused_with_one_line(tmp_path, content, message):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecipeError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{tmp_path}/" + message.format(folder=tmp_path))
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes("\ufeffa: 1\r\nb:\r\n  c: ü\r\n".encode())
    tree = read_yaml(path)
    assert isinstance(tree, Mapping)
    assert plain(tree) == {"a": 1, "b": {"c": "ü"}}
