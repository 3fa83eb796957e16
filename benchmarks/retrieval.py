"""Measures how often sentence vectors find the paragraph that answers a question of SQuAD.

    python -m benchmarks.retrieval --models=DIRECTORY,DIRECTORY [--squad_file=FILE] [--poolings=auto,mean,cls]

The corpus has all distinct paragraphs of the file. The baseline is scikit-learn's TF-IDF with default settings.
"""

import json

import numpy as np
from absl import app, flags
from sklearn.feature_extraction.text import TfidfVectorizer

import bert_tf
from benchmarks.common import SQUAD_FILE
from bert_tf import sentence_vectors
from bert_tf.runtime import reporting

_MODELS = flags.DEFINE_list("models", None, "Directories of models.", required=True)
_FILE = flags.DEFINE_string("squad_file", SQUAD_FILE, "Questions in the format of SQuAD.")
_POOLINGS = flags.DEFINE_list("poolings", ["auto", "mean", "cls"], "Poolings to compare. auto: as recorded.")


def questions_of(path):
    """Returns the questions of a file, the index of each question's paragraph, and the distinct paragraphs."""
    with open(path, encoding="utf-8") as reader:
        articles = json.load(reader)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    contexts = list(dict.fromkeys(paragraph["context"] for paragraph in paragraphs))
    index = {context: number for number, context in enumerate(contexts)}
    asked = [(qa["question"], index[paragraph["context"]]) for paragraph in paragraphs for qa in paragraph["qas"]]
    questions, answers = zip(*asked, strict=True)
    return list(questions), np.array(answers), contexts


def scores(queries, corpus, answers):
    """Returns the scores of a search in percent, and the mean cosine similarity of pairs of paragraphs."""
    found, _ = sentence_vectors.search(queries, corpus, len(corpus))
    ranks = 1 + np.argmax(found == answers[:, None], axis=1)
    units = sentence_vectors.unit_vectors(corpus, "corpus")
    total = np.square(units.sum(axis=0)).sum() - np.square(units).sum()
    return {
        "recall@1": 100 * float(np.mean(ranks == 1)),
        "recall@5": 100 * float(np.mean(ranks <= 5)),
        "MRR": 100 * float(np.mean(1 / ranks)),
        "mean cosine": float(total / max(1, len(corpus) * (len(corpus) - 1))),
    }


def main(_) -> None:
    questions, answers, contexts = questions_of(_FILE.value)
    tf_idf = TfidfVectorizer().fit(contexts)
    queries, corpus = (tf_idf.transform(texts).toarray() for texts in (questions, contexts))
    rows = [{"vectors": "TF-IDF", "pooling": "", **scores(queries, corpus, answers)}]
    for model in _MODELS.value:
        encoder = bert_tf.SentenceEncoder.from_pretrained(model)
        for pooling in _POOLINGS.value:
            given = None if pooling == "auto" else pooling
            queries, corpus = (encoder.encode(texts, pooling=given) for texts in (questions, contexts))
            rows.append({"vectors": model, "pooling": pooling, **scores(queries, corpus, answers)})
    print(f"{len(questions)} questions, {len(contexts)} paragraphs\n{reporting.table(rows)}")


if __name__ == "__main__":
    app.run(main)
