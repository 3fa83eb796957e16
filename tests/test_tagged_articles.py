import types

from bert_tf.tasks.tagging import conll
from examples import tagged_articles


def test_articles_have_their_paragraphs_without_headings(tmp_path):
    path = tmp_path / "wikitext2_valid.txt"
    lines = [" ", " = One ( 1 = 1 ) = ", " ", " A red @-@ tipped claw of 0 @.@ 7 kg . ", " = = Part = = ", " More . "]
    path.write_text("\n".join([*lines, " = Two = ", " = = = Deep = = = ", " x = y "]), encoding="utf-8")
    assert tagged_articles.read_articles(path) == [["A red-tipped claw of 0.7 kg .", "More ."], ["x = y"]]


def test_the_files_hold_documents_with_the_types_of_conll(tmp_path):
    def paragraph(*sentences):
        words = [[types.SimpleNamespace(text=t, ent_iob_=i, ent_type_=e) for t, i, e in words] for words in sentences]
        return types.SimpleNamespace(sents=words)

    ada = [("Ada", "B", "PERSON"), ("King", "I", "PERSON"), ("in", "O", ""), ("1843", "B", "DATE")]
    articles = [[paragraph(ada, [("Ha", "O", "")])], [paragraph([("Rome", "B", "GPE")])]]
    lines = list(tagged_articles.conll_lines(articles))
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sentences = list(conll.read_sentences(str(path), has_tags=True))
    assert [sentence.document for sentence in sentences] == [0, 0, 1]
    assert [sentence.tags for sentence in sentences] == [("B-PER", "I-PER", "O", "O"), ("O",), ("B-LOC",)]
    assert not any(sentence.problem for sentence in sentences)
