import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks.tagging import conll

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


def test_empty_file_is_refused(write):
    with pytest.raises(InputError, match="is empty"):
        read(write, "")


SCHEMES = {
    "iob2": "B-A I-A B-A O B-B B-A",
    "iob1": "I-A I-A B-A O I-B I-A",
    "bioes": "B-A E-A S-A O S-B S-A",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_the_same_in_all_schemes(write, scheme):
    tags = SCHEMES[scheme].split()
    (sentence,) = read(write, "".join(f"w {tag}\n" for tag in tags))
    assert sentence.entities() == [("A", 0, 1), ("A", 2, 2), ("B", 4, 4), ("A", 5, 5)]
    assert conll.detect_scheme([sentence]) == scheme
    assert conll.tags_of(sentence.entities(), 6, scheme) == tags


def test_iob2_with_mistakes_is_not_iob1(write):
    sentences = read(write, "a B-A\n\nb I-A\n")
    assert conll.detect_scheme(sentences) == "iob2"


def test_predictions_are_appended_to_their_lines(write, tmp_path):
    source = write("a.txt", COLUMNS)
    conll.write_predictions(str(tmp_path / "out"), source, {3: "B-ORG", 4: "O", 6: "O", 7: "O"})
    written = (tmp_path / "out").read_text().split("\n")
    assert written[0] == "-DOCSTART- -X- -X- O"
    assert written[2] == "EU NNP I-NP I-ORG B-ORG"
    assert len(written) == len(COLUMNS.split("\n"))
