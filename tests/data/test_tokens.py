"""Token tables of every kind, their policies and their checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asr.data.config import CharactersConfig, PhonesConfig, SubwordsConfig
from asr.data.manifest import Utterance
from asr.data.tokens import BLANK, UNK, CharacterTable, OovError, PhoneTable, TokenTable, build_tokens, encode_all
from asr.errors import DataError

LEXICON = "ONE  W AH1 N\nONE(2)  HH W AH1 N\nTWO  T UW1\nTOO  T UW1\nA  AH0\nZERO  Z IH1 R OW0\n"
TEXTS = [
    *["ONE TWO", "TWO", "ZERO A ONE", "THERE ARE MANY MORE WORDS HERE", "THESE WORDS TEACH SEVERAL UNITS"],
    *["MORE WORDS ARE TAUGHT IN HERE", "SEVERAL TEACHERS TEACH ONE ANOTHER", "NO WORD IS THE ONLY WORD"],
]


def utterance(text: str, id: str = "u", phones: str | None = None) -> Utterance:
    return Utterance(id, Path("/a.wav"), 1.0, "s", text, phones=tuple(phones.split()) if phones is not None else None)


def utterances(*texts: str) -> list[Utterance]:
    return [utterance(text, f"u{number}") for number, text in enumerate(texts)]


@pytest.fixture
def lexicon(tmp_path) -> Path:
    path = tmp_path / "lexicon.txt"
    path.write_text(LEXICON)
    return path


def every_table(lexicon: Path) -> list[TokenTable]:
    train = utterances(*TEXTS)
    return [
        build_tokens(PhonesConfig(lexicon=lexicon), []),
        build_tokens(PhonesConfig(lexicon=lexicon, stress="keep", oov="unk", silence="SIL"), []),
        build_tokens(SubwordsConfig(size=36), train),
        build_tokens(SubwordsConfig(size=36, model="bpe"), train),
        build_tokens(CharactersConfig(), train),
    ]


# Phones


def test_phones_of_the_first_pronunciation_and_symbols_of_the_whole_lexicon(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon), utterances("TWO"))
    assert table.symbols == [BLANK, "AH", "HH", "IH", "N", "OW", "R", "T", "UW", "W", "Z"]
    assert table.unk is None
    target = table.encode(utterance("ONE\u00a0TWO"))
    assert table.symbols_of(target) == ["W", "AH", "N", "T", "UW"]
    assert table.text_of(target) == "W AH N T UW"


def test_phones_of_the_manifest_win_and_are_folded_alike(lexicon):
    fold, keep = (build_tokens(PhonesConfig(lexicon=lexicon, stress=s), []) for s in ("fold", "keep"))
    given = utterance("NOT IN LEXICON", phones="T UW1 AH0")
    assert fold.symbols_of(fold.encode(given)) == ["T", "UW", "AH"]
    assert keep.symbols_of(keep.encode(given)) == ["T", "UW1", "AH0"]


def test_phones_without_lexicon_come_from_the_training_manifest():
    table = build_tokens(PhonesConfig(), [utterance("", phones="B AH0"), utterance("", "v", phones="AH1 SIL")])
    assert table.symbols == [BLANK, "AH", "B", "SIL"]
    with pytest.raises(OovError, match="utterance 'w': not in the token table: ZH"):
        table.encode(utterance("", "w", phones="B ZH"))
    for reserved in (BLANK, UNK):
        assert table.unknown(utterance("", phones=f"B {reserved}")) == [reserved]


def test_phones_without_lexicon_and_without_phones_is_an_error():
    with pytest.raises(DataError, match="'u' has no phones in its manifest: set tokens"):
        build_tokens(PhonesConfig(), [utterance("ONE")])


def test_silence_stands_between_words_and_at_both_ends(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon, silence="SIL"), [])
    assert table.text_of(table.encode(utterance("A TWO"))) == "SIL AH SIL T UW SIL"
    assert table.text_of(table.encode(utterance(""))) == "SIL"


@pytest.mark.parametrize("symbol", [BLANK, UNK])
def test_E5_reserved_symbols_in_the_lexicon_are_refused(tmp_path, symbol):
    (tmp_path / "l.txt").write_text(f"ONE  W {symbol} N\n")
    with pytest.raises(DataError, match="cannot be a phone"):
        build_tokens(PhonesConfig(lexicon=tmp_path / "l.txt"), [])


# Unknown words


def test_B3_error_is_the_default_and_lists_words_counts_and_ids(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon), [])
    with pytest.raises(DataError) as error:
        encode_all(table, utterances("ONE", "ONE CAT", "DOG CAT"))
    message = str(error.value)
    assert "words without pronunciation: 2, in 2 utterances (u1, u2): CAT (2), DOG (1)" in message
    assert "\n" not in message


def test_B3_unk_keeps_the_length_of_the_target(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon, oov="unk"), [])
    encoded = encode_all(table, utterances("ONE TWO", "TWO CAT TWO"))
    assert table.symbols_of(encoded.targets["u1"]) == ["T", "UW", UNK, "T", "UW"]
    assert encoded.oov == {"CAT": 1}
    assert encoded.unk_rate == pytest.approx(1 / 10)
    assert encoded.dropped == {}
    assert "10.00% <unk>; unknown: CAT (1)" in encoded.summary()


def test_B3_drop_names_the_utterance_and_leaves_the_reference_alone(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon, oov="drop"), [])
    given = utterances("ONE TWO", "TWO CAT")
    encoded = encode_all(table, given)
    assert list(encoded.targets) == ["u0"]
    assert encoded.dropped == {"u1": "not in the lexicon: CAT"}
    assert given[1].words == ["TWO", "CAT"]
    with pytest.raises(DataError, match="every utterance has words without pronunciation"):
        encode_all(table, given[1:])


@pytest.mark.parametrize("kind", ["phones", "unigram", "bpe", "characters"])
def test_H5_text_in_the_other_case_stops_the_run_and_says_why(lexicon, kind):
    config = {
        "phones": PhonesConfig(lexicon=lexicon, oov="unk"),
        "unigram": SubwordsConfig(size=36),
        "bpe": SubwordsConfig(size=36, model="bpe"),
        "characters": CharactersConfig(),
    }[kind]
    table = build_tokens(config, utterances(*TEXTS))
    with pytest.raises(DataError, match=r"100% of the target tokens are <unk>.* Upper and lower case differ"):
        encode_all(table, utterances("one two", "zero one"))
    assert encode_all(table, utterances("ONE TWO", "ZERO one")).unk_rate < 0.5


@pytest.mark.parametrize("kind", [SubwordsConfig(size=36), SubwordsConfig(size=36, model="bpe"), CharactersConfig()])
def test_H5_unseen_letters_digits_and_full_width_letters_are_unk(kind):
    table = build_tokens(kind, utterances(*TEXTS))
    for text, unknown in [("ONE 7", "7"), ("ONE ＯNE", "Ｏ"), ("É", "É"), ("ONE▁TWO", "▁")]:
        target = table.encode(utterance(text))
        assert target.count(table.unk) == 1
        assert table.text_of(target) == text.replace(unknown, UNK)
    assert table.unknown(utterance("ONE 7")) == ["7"]


@pytest.mark.parametrize("kind", [SubwordsConfig(size=36), SubwordsConfig(size=36, model="bpe"), CharactersConfig()])
def test_H5_reserved_symbols_in_a_text_are_letters(kind):
    table = build_tokens(kind, utterances(*TEXTS, "<k> <b> l> <a n u"))
    for text in ("<unk>", "<blank> ONE"):
        target = table.encode(utterance(text))
        assert table.blank not in target
        assert table.unk not in target
        assert table.text_of(target) == text


def test_H5_round_trip_of_real_transcripts(corpus):
    rows = (corpus("librispeech") / "transcripts.tsv").read_text(encoding="utf-8").split("\n")[:50]
    texts = [row.split("\t")[2] for row in rows]
    for config in (SubwordsConfig(size=200), SubwordsConfig(size=200, model="bpe"), CharactersConfig()):
        table = build_tokens(config, utterances(*texts))
        encoded = encode_all(table, utterances(*texts))
        assert [table.text_of(encoded.targets[f"u{n}"]) for n in range(50)] == texts
        assert encoded.unk_rate == 0


# Subwords


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_H5_impossible_sizes_name_the_limit(model):
    with pytest.raises(DataError, match=r"tokens\.size: 5000 units are more than .* at most \d+$"):
        build_tokens(SubwordsConfig(size=5000, model=model), utterances(*TEXTS))
    with pytest.raises(DataError, match=r"tokens\.size: 8 units are fewer than"):
        build_tokens(SubwordsConfig(size=8, model=model), utterances(*TEXTS))


def test_subword_size_is_the_size_of_the_table_and_training_is_deterministic():
    first, second = (build_tokens(SubwordsConfig(size=36), utterances(*TEXTS)) for _ in range(2))
    assert len(first) == 36
    assert first.state() == second.state()


def test_very_long_transcripts_are_learnt_from_too():
    long = " ".join(["ABC CAB"] * 1000) + " Q"  # sentencepiece alone skips lines above 4,192 bytes
    table = build_tokens(SubwordsConfig(size=8), utterances(long))
    assert table.unknown(utterance("Q")) == []


@pytest.mark.parametrize("config", [SubwordsConfig(), CharactersConfig()])
@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_nothing_to_learn_from(config, texts):
    with pytest.raises(DataError, match="training text"):
        build_tokens(config, utterances(*texts))


# The table itself


@pytest.mark.parametrize(
    ("symbols", "unk", "message"),
    [
        ([], None, "first symbol must be <blank>"),
        (["a", BLANK], None, "first symbol must be <blank>"),  # blank last
        (["a", "b"], None, "first symbol must be <blank>"),  # blank missing
        ([BLANK, "a", BLANK], None, "more than once: <blank>"),
        ([BLANK, "a", "b", "a"], None, "more than once: a"),
        ([BLANK, "a", "b"], 0, "id 0 is not <unk>"),  # unk shares the blank's id
        ([BLANK, UNK, "a"], 2, "id 2 is not <unk>"),
        ([BLANK, UNK, "a"], 3, "id 3 is not <unk>"),
        ([BLANK, UNK, "a"], None, "has no id of its own"),
        ([BLANK, UNK], 1, "no symbol but blank"),
        ([BLANK, "a b"], None, "holds a space"),
        ([BLANK, ""], None, "empty"),
    ],
)
def test_E5_wrong_tables_are_refused(symbols, unk, message):
    with pytest.raises(DataError, match=message):
        CharacterTable(symbols, unk)


def test_E5_targets_are_in_range_and_never_blank(lexicon):
    for table in every_table(lexicon):
        table.check_target([1, len(table) - 1])
        for bad in (0, -1, len(table)):
            with pytest.raises(DataError, match=f"token id {bad} is"):
                table.check_target([1, bad])
        with pytest.raises(DataError, match="outside"):
            table.symbols_of([len(table)])


def test_E5_encode_all_checks_targets():
    class Wrong(CharacterTable):
        kind = "wrong"

        def encode(self, utterance):
            return [0]

    with pytest.raises(DataError, match="utterance 'u0': token id 0 is <blank>"):
        encode_all(Wrong([BLANK, UNK, "a"], 1), utterances("a"))
    del TokenTable._kinds["wrong"]


def test_the_blank_is_0_and_no_text_encodes_to_it(lexicon):
    for table in every_table(lexicon):
        assert table.blank == 0
        assert table.symbols[0] == BLANK
        assert table.unk != table.blank
        assert 0 not in table.encode(utterance("ONE TWO"))


def test_state_is_plain_and_gives_the_same_table_back(lexicon):
    for table in every_table(lexicon):
        again = TokenTable.from_state(json.loads(json.dumps(table.state())))
        assert type(again) is type(table)
        assert again.state() == table.state()
        for text in ("ONE TWO", "ZERO A", ""):
            assert again.encode(utterance(text)) == table.encode(utterance(text))
            assert again.text_of(table.encode(utterance(text))) == table.text_of(table.encode(utterance(text)))


def test_the_table_needs_no_lexicon_file_any_more(lexicon):
    state = build_tokens(PhonesConfig(lexicon=lexicon), utterances("ONE")).state()
    lexicon.unlink()
    table = TokenTable.from_state(state)
    assert table.text_of(table.encode(utterance("ZERO"))) == "Z IH R OW"


@pytest.mark.parametrize("change", [{"version": 2}, {"kind": "morphs"}, {"normaliser": "upper"}])
def test_unreadable_state(lexicon, change):
    state = build_tokens(PhonesConfig(lexicon=lexicon), []).state()
    with pytest.raises(DataError, match=str(next(iter(change.values())))):
        TokenTable.from_state(state | change)


def test_subword_model_and_symbols_must_agree():
    state = build_tokens(SubwordsConfig(size=36), utterances(*TEXTS)).state()
    with pytest.raises(DataError, match="differ"):
        TokenTable.from_state(state | {"symbols": state["symbols"][::-1]})


def test_an_utterance_twice_in_one_set(lexicon):
    table = build_tokens(PhonesConfig(lexicon=lexicon), [])
    with pytest.raises(DataError, match="'u' stands twice"):
        encode_all(table, [utterance("ONE"), utterance("TWO")])


def test_an4_is_covered_by_its_dictionary(corpus):
    rows = (corpus("an4") / "transcripts.tsv").read_text(encoding="utf-8").strip().split("\n")
    table = build_tokens(PhonesConfig(lexicon=corpus("an4") / "an4.dic"), [])
    assert isinstance(table, PhoneTable)
    encoded = encode_all(table, [utterance(text, id) for id, _, text in (row.split("\t") for row in rows)])
    assert len(encoded.targets) == 1078
    assert not encoded.oov


def test_phone_table_keeps_all_pronunciations_for_scoring(tmp_path):
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("DATA D EY1 T AH0\nDATA(2) D AE1 T AH0\nIS IH1 Z\n")
    config = PhonesConfig(lexicon=lexicon, stress="fold")
    said = Utterance("a", Path("a.wav"), 1.0, "s", "DATA IS")
    table = build_tokens(config, [said])
    table = TokenTable.from_state(table.state())
    assert table.symbols_of(table.encode(said)) == ["D", "EY", "T", "AH", "IH", "Z"]
    assert table.variants(said) == [(("D", "EY", "T", "AH"), ("D", "AE", "T", "AH")), (("IH", "Z"),)]
    given = Utterance("b", Path("b.wav"), 1.0, "s", "DATA", phones=("D", "AH0"))
    assert table.variants(given) == [(("D",),), (("AH",),)]
