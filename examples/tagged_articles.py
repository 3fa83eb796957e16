"""Writes a data set of named entities in complete articles: WikiText-2, tagged by a spaCy model.

    pip install spacy
    python -m spacy download en_core_web_sm
    python -m examples.tagged_articles DATA/pretrain DATA/ner/articles

The tags contain the mistakes of the spaCy model, so a score measures only the agreement with that model. The types are
PER, LOC, ORG and MISC, as in CoNLL-2003. Numbers and dates, which spaCy also finds, are skipped.
"""

import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

# A title has one "=" on each side, and a heading within an article has more.
TITLE = re.compile(r"= [^=].* =")
HEADING = re.compile(r"= .* =")
TYPES = {"PERSON": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}
TYPES |= dict.fromkeys(("NORP", "EVENT", "WORK_OF_ART", "PRODUCT", "LAW", "LANGUAGE"), "MISC")
# Split -> the part of WikiText-2, and the selected articles.
SPLITS = {"train": ("valid", slice(0, 12)), "dev": ("test", slice(0, 5)), "test": ("test", slice(5, 10))}


def read_articles(path: pathlib.Path) -> list[list[str]]:
    """Returns the paragraphs of each article, without headings. " @-@ " is replaced by the original "-"."""
    articles: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = re.sub(r" @(.)@ ", r"\1", line.strip())
        if TITLE.fullmatch(line):
            articles.append([])
        elif line and not HEADING.fullmatch(line):
            articles[-1].append(line)
    return articles


def conll_lines(articles: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yields the lines of a CoNLL file with words and IOB2 tags. Each paragraph of an article is a spaCy document."""
    for paragraphs in articles:
        yield from ("-DOCSTART- O", "")
        for paragraph in paragraphs:
            for sentence in paragraph.sents:
                for word in sentence:
                    entity = TYPES.get(word.ent_type_)
                    yield f"{word.text} {word.ent_iob_}-{entity}" if entity else f"{word.text} O"
                yield ""


def main(source: str, target: str, model_name: str = "en_core_web_sm") -> None:
    """Writes train.txt, dev.txt and test.txt to the directory `target`."""
    import spacy  # imported here because tests import this module without spaCy

    model = spacy.load(model_name)
    directory = pathlib.Path(target)
    directory.mkdir(parents=True, exist_ok=True)
    for split, (part, chosen) in SPLITS.items():
        articles = read_articles(pathlib.Path(source) / f"wikitext2_{part}.txt")[chosen]
        # The text is already divided into words.
        documents = ([spacy.tokens.Doc(model.vocab, words=text.split()) for text in article] for article in articles)
        lines = list(conll_lines(map(model.pipe, documents)))
        (directory / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{split}: {len(articles)} articles, {lines.count('') - len(articles):,} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
