"""Words, and records that end at LF only."""

from __future__ import annotations

import pytest

from asr.data.text import SEPARATORS, read_lines, split_words
from asr.errors import DataError


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\u2029", "\t", "  ", "\u2009", "\u0085", "\x0b"])
def test_B5_unicode_spaces_separate_words(space):
    assert split_words(f"ONE{space}TWO") == ["ONE", "TWO"]


@pytest.mark.parametrize("code", [0x200B, 0xFEFF, 0x2060, 0x00AD, 0x202E, 0x0000, 0xD800])
def test_B5_invisible_characters_are_refused_with_code_point(code):
    with pytest.raises(DataError, match=f"U\\+{code:04X} at position 4"):
        split_words(f"ONE{chr(code)}TWO")


def test_B5_every_white_space_character_of_unicode_is_a_separator():
    # str.isspace also counts the four information separators U+001C-1F, which are controls and refused
    spaces = {chr(c) for c in range(0x110000) if chr(c).isspace()} - set("\x1c\x1d\x1e\x1f")
    assert set(SEPARATORS) == spaces


def test_joiners_that_are_spelling_stay():
    assert split_words("می\u200cخواهم क\u094d\u200dष") == ["می\u200cخواهم", "क\u094d\u200dष"]


def test_no_words():
    assert split_words(" \t\u3000") == []


def test_B5_lines_end_at_lf_only(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("\ufeffa\u2028b\r\n\n c\x0cd\u0085\rE\n".encode())
    assert list(read_lines(file)) == [(1, "a\u2028b"), (3, " c\x0cd\u0085\rE")]


def test_bytes_that_are_not_utf8_name_the_line(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"good\nD\xc9J\xc0\n")
    with pytest.raises(DataError, match=r"text:2: byte 0xC9 is not UTF-8"):
        list(read_lines(file))


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        list(read_lines(tmp_path / "none"))
