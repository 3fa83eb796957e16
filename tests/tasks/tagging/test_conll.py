import pytest

from bert_tf.tasks import tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.tagging import conll, schemes
from bert_tf.tasks.tagging.schemes import Sentence
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests.conftest import assert_refused

COLUMNS = (
    "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\nBlack NNP I-NP I-PER\n"
)


def read(write, text, has_tags=True):
    return list(conll.read_sentences(write("a.txt", text), has_tags))


def test_four_columns_with_documents(write):
    text = COLUMNS + "\n-DOCSTART- -X- -X- O\n\nBonn NNP I-NP I-LOC\n"
    sentences = read(write, text)
    assert [s.words for s in sentences] == [("EU", "rejects"), ("Peter", "Black"), ("Bonn",)]
    assert [s.document for s in sentences] == [0, 0, 1]
    assert [s.lines for s in sentences] == [(3, 4), (6, 7), (11,)]
    assert sentences[1].entities() == [("PER", 0, 1)]


def test_two_columns_with_tabs_and_odd_blank_lines(write):
    sentences = read(write, "a b\tO\nc\tB-x\n\t\nd\tO\r\n \n\n")  # WNUT-17's blank lines contain a tab
    assert [s.words for s in sentences] == [("a b", "c"), ("d",)]
    assert sentences[0].tags == ("O", "B-x")
    assert sentences[0].document is None


@pytest.mark.parametrize(
    ("text", "has_tags", "words"),
    [
        ("# id 7\tdomain=en\na _ _ O\n# _ _ O\n\n# source: x y\n# _ _ B-X\n", True, [("a", "#"), ("#",)]),
        ("#fun RB x\nyes UH y\n\n# id 7\n#no RB z\n", False, [("#fun", "yes"), ("#no",)]),
        ("#begin document (x)\n#text = Hi\na\n", False, [("a",)]),
        ("#begin document (x)\na RB B-X O\n\n#sent_id = 3 x\n#b RB B-X O\n", True, [("a",), ("#b",)]),
    ],
)
def test_comments_are_skipped_but_a_hash_and_a_hashtag_can_be_words(write, text, has_tags, words):
    assert [sentence.words for sentence in read(write, text, has_tags)] == words


def test_words_alone_are_enough_to_predict(write):
    (sentence,) = read(write, "one\ntwo\n", has_tags=False)
    assert (sentence.words, sentence.tags, sentence.problem) == (("one", "two"), None, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb O x\n", "line 2: the row has 3 columns"),
        ("a\nb\n", "line 1: the row has one column"),
        ("a O\nb PER\n", "line 2: the tag is 'PER'"),
        ("# PER\n", "line 1: the tag is 'PER'"),
        ("b\tO\n\tO\n", "line 2: the word is empty"),
    ],
)
def test_problems_of_a_sentence_are_reported_with_their_line(write, text, message):
    (problem,) = [f"line {s.line}: {s.problem}" for s in read(write, text) if s.problem]
    assert problem.startswith(message)


SCHEMES = {
    "iob2": "B-A I-A B-A O B-B B-A",
    "iob1": "I-A I-A B-A O I-B I-A",
    "bioes": "B-A E-A S-A O S-B S-A",
    "bilou": "B-A L-A U-A O U-B U-A",
    "bmes": "B-A E-A S-A O S-B S-A",
    "bmewo": "B-A E-A W-A O W-B W-A",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_the_same_in_all_schemes(write, scheme):
    tags = SCHEMES[scheme].split()
    (sentence,) = read(write, "".join(f"w {tag}\n" for tag in tags))
    assert sentence.entities() == [("A", 0, 1), ("A", 2, 2), ("B", 4, 4), ("A", 5, 5)]
    longer = schemes.tags_of([("A", 0, 2)], 3, scheme)
    assert schemes.entities_of(longer, is_plain=False) == [("A", 0, 2)]
    assert schemes.detect_scheme([sentence.tags, longer]) == scheme
    assert schemes.tags_of(sentence.entities(), 6, scheme) == tags


@pytest.mark.parametrize(
    ("rows", "scheme"),
    [
        ([["B-A"], ["I-A"]], "iob2"),  # with a mistake
        ([["O", "O"]], "iob2"),
        ([["DET", "NOUN"]], "plain"),
        ([["O", "PER", "PER"]], "plain"),
        ([["B-A", "PER"]], "iob2"),  # PER is a mistake
    ],
)
def test_schemes_are_detected(rows, scheme):
    assert schemes.detect_scheme(rows) == scheme


SPELLINGS = {
    "B_A I_A O B_B": "B-A I-A O B-B",
    "b-a i-a o b-b": "B-a I-a O B-b",
    "A-B A-I O B-B": "B-A I-A O B-B",
    "A/b A/i o B/b": "B-A I-A O B-B",
    "人名_B 人名_M 人名_E O": "B-人名 M-人名 E-人名 O",
    "B-x_y I-x_y o": "B-x_y I-x_y O",
    "B–x I–x O B–y": "B-x I-x O B-y",
    "B- I- O B-": "B-_ I-_ O B-_",
    "B I O B": "B-_ I-_ O B-_",
    "b m e s": "B-_ M-_ E-_ S-_",
    "n v b a": "n v b a",
    "NN VB O": "NN VB O",
    "A_B A_I O ODD A_B B_I": "B-A I-A O ODD B-A I-B",
}


@pytest.mark.parametrize("tags", SPELLINGS)
def test_other_spellings_of_tags_are_read(write, tags):
    expected = SPELLINGS[tags].split()
    scheme = "plain" if tags == SPELLINGS[tags] else "bmes" if "M-" in SPELLINGS[tags] else "iob2"
    assert schemes.detect_scheme([tags.split()]) == scheme
    text = "".join(f"w {tag}\n" for tag in tags.split())
    for source in (write("a.txt", text), [Sentence.in_row("", ["w"] * len(expected), tags.split(), 0)]):
        (sentence,) = conll.read_sentences(source, True, scheme)
        assert list(sentence.tags) == expected
        assert ("'ODD'" in sentence.problem) == ("ODD" in tags)


def test_unknown_prefixes_are_not_taken_as_types():
    for tags in (["X-PER", "Y-PER", "O"], ["begin_LOC", "O", "in_LOC"]):
        assert_refused(r"unknown prefixes.*--tag_scheme=plain", schemes.detect_scheme, [tags])
    few_nerd = ["person-actor", "person-other", "location-GPE", "location-other", "art-film", "event-war", "O"]
    for tags in (few_nerd, ["PER-x", "LOC-x", "NN-y"]):  # types with subtypes, and nothing outside of entities
        assert schemes.detect_scheme([tags]) == "plain"


def test_neighbours_of_a_plain_type_are_one_entity():
    found = schemes.entities_of(["PER", "PER", "O", "LOC", "PER"], is_plain=True)
    assert found == [("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)]


GERMEVAL = (
    "#\thttp://de.wikipedia.org/x [2009-10-17]\n1\tAm\tO\tO\n2\tRhein\tB-LOC\tO\n\n#\ty z\n1\tUlm\tB-LOC\tB-ORG\n"
)
CONLL_U = (
    "# newdoc\n# text = Zum See\n1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_\n1\tzu\tzu\tADP\tAPPR\t_\t3\tcase\t_\t_\n"
    "2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_\n3\tSee\tSee\tNOUN\tNN\t_\t0\troot\t_\t_\n3.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
)


@pytest.mark.parametrize(
    ("text", "columns", "words", "tags"),
    [
        (GERMEVAL, conll.DETECTED, ["Am Rhein", "Ulm"], ["O B-LOC", "B-LOC"]),
        (GERMEVAL, ("", "4"), ["Am Rhein", "Ulm"], ["O O", "B-ORG"]),
        (CONLL_U, conll.DETECTED, ["zu dem See"], ["ADP DET NOUN"]),
        (CONLL_U, ("lemma", "XPOS"), ["zu der See"], ["APPR ART NN"]),
        (CONLL_U.replace("# newdoc", "# global.columns = ID W X Y Z"), ("", "z"), ["zu dem See"], ["APPR ART NN"]),
        (COLUMNS, ("", "2"), ["EU rejects", "Peter Black"], ["NNP VBZ", "NNP NNP"]),
        (COLUMNS, ("", "-2"), ["EU rejects", "Peter Black"], ["I-NP I-VP", "I-NP I-NP"]),
        ("Tag Word\nO a\nB-X b\n", ("word", "tag"), ["a b"], ["O B-X"]),
        ("1 O\n2 O\n", conll.DETECTED, ["1 2"], ["O O"]),  # the words are numbers
        ("7 a X\n8 b Y\n\n9 c X\n", conll.DETECTED, ["a b", "c"], ["X Y", "X"]),
        ("0 a X\n1 b Y\n", conll.DETECTED, ["a b"], ["X Y"]),
        ("2-1 a X\n0-0 b Y\n", conll.DETECTED, ["2-1 0-0"], ["X Y"]),  # the words are results of games
        ("# text = vitamin O\na\tX\n#\tY\n", conll.DETECTED, ["a #"], ["X Y"]),
        ("# SYM\n#fun NN\n", conll.DETECTED, ["# #fun"], ["SYM NN"]),
        ("word pos\na X\n", conll.DETECTED, ["a"], ["X"]),
        ("Token\tNER\tscore\na\tX\t0.5\n", conll.DETECTED, ["a"], ["X"]),
        ("O\twho\nB-X\tAlien\n", conll.DETECTED, ["who Alien"], ["O B-X"]),  # as in the MIT corpora
        ("a NN B-NP X\nb NN O O\n", conll.DETECTED, ["a b"], ["X O"]),
        ("a B-X 0.9\nb O 0.8\n", ("", "2"), ["a b"], ["B-X O"]),
        ("a B-X NN\nb O VB\n", ("", "-1"), ["a b"], ["NN VB"]),
        ("1/2 B_X\nand/or O\nhttp://x/y O\n", conll.DETECTED, ["1/2 and/or http://x/y"], ["B_X O O"]),
    ],
)
def test_columns_are_found(write, text, columns, words, tags):
    found = list(conll.read_sentences(write("a.txt", text), True, "plain", columns))
    assert [" ".join(sentence.words) for sentence in found] == words
    assert [" ".join(sentence.tags) for sentence in found] == tags


def test_a_column_that_is_not_there_is_named(write):
    for columns, flag in ((("form", ""), "--word_column"), (("", "5"), "--tag_column")):
        found = conll.read_sentences(write("a.txt", COLUMNS), True, "iob2", columns)
        assert_refused(f"{flag}.*a.txt has no column .*1 to 4", list, found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a B-X 0.9\nb O 0.8\n", "column 2 has tags of entities, but the last column has none"),
        ("a B_X NN\nb O VB\n", "column 2 has tags of entities, but the last column has none"),
        ("a NN B-X O\nb VB O I-X\n", "column 3 and the last column have tags of the same types"),
        ("Mara left Bonn\tX\nLo came home\tY\n", "most words are 'Mara left Bonn' or similar"),
        ("a PER 12\nb O 1e-3\n", "the last column has numbers instead of tags"),
        ("a (PER*\nb *)\nc *\n", r"line 1: the tag '\(PER\*' has the brackets of CoNLL-2012"),
        (
            "".join(f"{'NN' if i % 2 else 'DT'} w{i}\n" for i in range(60)),
            "2 different cells, and the last column has 60",
        ),
        ("a B-X|B-Y\nb O\n", "line 1: the tag 'B-X[|]B-Y' has several entities"),
        ("0 4 Mara B-X\n5 9 left O\n" * 30, "most words are '0' or similar"),
        ("1-1\t0-4\tMara\tX[1]\n1-2\t5-9\tleft\t_\n" * 30, "most words are '1-1' or similar"),
        (CONLL_U.replace("See", "_").replace("zu\t", "_\t").replace("dem", "_"), "most words are '_'"),
        (CONLL_U.replace("NOUN", "_"), "line 6: the tag is '_'"),
        ("The/DT dog/NN\nHe/PRP and/or/CC\n", "'The/DT' is not a single word or tag"),
        ("The|the:B-X\nand/or:O\n", "'The|the:B-X' is not a single word or tag"),
        ('"Mara" "B-X"\n"\'s" "O"\n', "is not a single word or tag.*without quotes"),
        ("Mara left Bonn\tB-X O B-Y\n" * 9, "'Mara left Bonn' is not a single word or tag"),
        ("He PRP he\nran VBD run\nup RP up\n", "the last column repeats the words"),
        ("a X _\nb Y _\nc Y A0\n", "the last column has mostly '_' or '-'"),
        ("word pos ne\na NN B-X\nb VB O\n", "column 3 has tags of entities, but column 2 has none"),
        ("T1\tPER 0 4\tMara\nT2\tLOC 9 13\tBonn\nR1\tin Arg1:T1\tT2\n", "most words are 'T1' or similar"),
        ("s1.w1 Mara B-X\ns1.w2 left O\n" * 30, "most words are 's1.w1' or similar"),
    ],
)
def test_columns_without_words_or_tags_are_refused(write, text, message):
    task = TaggingTask(DataConfig("ner", tag_scheme="plain"), {"train": write("a.txt", text)})
    assert_refused(message, task.examples, "train")


def test_predictions_are_appended_to_their_lines(write, tmp_path):
    source = write("a.txt", COLUMNS)
    sentences = list(conll.read_sentences(source, False))
    conll.write_predictions(str(tmp_path / "out"), tables.open_table(source), sentences, [["B-ORG", "O"], ["O", "O"]])
    written = (tmp_path / "out").read_text().split("\n")
    assert written[0] == "-DOCSTART- -X- -X- O"
    assert written[2] == "EU NNP I-NP I-ORG B-ORG"
    assert len(written) == len(COLUMNS.split("\n"))


@pytest.mark.parametrize(("second", "is_reported"), [("I-X", False), ("I-Y", True)])
def test_entities_that_begin_inside_are_reported(write, capsys, second, is_reported):
    task = TaggingTask(DataConfig("ner"), {"train": write("a.txt", f"a B-X\nb {second}\nc O\n")})
    task.check_training_set(task.split("train"))
    assert ("1 of 2 entities begin with I-" in capsys.readouterr().err) == is_reported
