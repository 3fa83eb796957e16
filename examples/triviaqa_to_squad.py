r"""Makes SQuAD-format training data from TriviaQA-Wiki (footnote 12 of the paper).

    python -m examples.triviaqa_to_squad \
        --triviaqa_file=qa/wikipedia-train.json --evidence_dir=evidence/wikipedia --output_file=triviaqa-train.json

A paragraph is the first 400 tokens of a document. A question is paired with each document whose paragraph contains a
possible answer to the question. The paper does not define a token; here it is a word or a punctuation mark of the basic
tokenizer. A paragraph contains an answer if it contains the answer's tokens in sequence, ignoring case. The first match
is used, with the longest answer at that position. The context is the unchanged text of the document, so offsets are
exact.
"""

import collections
import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags

from bert_tf.runtime import files, messages, path_checks, program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.reporting import progress_bar
from bert_tf.text import BasicTokenizer

_TRIVIAQA_FILE = flags.DEFINE_string("triviaqa_file", None, "TriviaQA's qa/wikipedia-train.json (or -dev).")
_EVIDENCE_DIR = flags.DEFINE_string("evidence_dir", None, "TriviaQA's directory evidence/wikipedia.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "SQuAD-format JSON file to write.")
_MAX_NUM_TOKENS = flags.DEFINE_integer("max_num_tokens", 400, "Number of tokens in a paragraph.", lower_bound=1)

_TOKENIZER = BasicTokenizer(do_lower_case=True)


class Question(NamedTuple):
    """A question and its possible answers. Each answer is a tuple of lower-case tokens."""

    question_id: str
    text: str
    answers: tuple[tuple[str, ...], ...]


class Paragraph(NamedTuple):
    """The beginning of a document: its text, its lower-case tokens, and the characters [start, end) of each token."""

    context: str
    tokens: list[str]
    spans: list[tuple[int, int]]


def read_triviaqa(path: str) -> tuple[list[Question], dict[str, list[Question]]]:
    """Reads the questions of TriviaQA-Wiki.

    Returns:
      All questions, and a map from document file names to questions. Both are in the order of the file.

    Raises:
      InputError: if the file does not have TriviaQA's layout, or an id occurs twice.
    """
    what = f"--triviaqa_file: {path}"
    questions: dict[str, Question] = {}
    questions_of: dict[str, list[Question]] = {}
    with files.open_file(files.require_file(path, "--triviaqa_file")) as reader:
        try:
            content = json.load(reader)
        except ValueError as error:
            raise InputError(f"{what} is not valid JSON ({error}). Use TriviaQA's qa/wikipedia-train.json.") from None
    for i, entry in enumerate(_get(content, "Data", list, what)):
        question_id = _get(entry, "QuestionId", str, f"{what}, Data[{i}]")
        where = f"{what}, question {question_id!r}"
        answer = _get(entry, "Answer", dict, where)
        aliases = [_get(answer, "Value", str, where), *_get(answer, "Aliases", list, where)]
        tokenized = dict.fromkeys(tuple(_TOKENIZER.tokenize(alias)) for alias in aliases)
        question = Question(question_id, _get(entry, "Question", str, where), tuple(filter(None, tokenized)))
        if question_id in questions:
            raise InputError(f"{where} occurs twice. Remove one of them.")
        questions[question_id] = question
        pages = _get(entry, "EntityPages", list, where)
        for name in dict.fromkeys(_get(page, "Filename", str, where) for page in pages):
            questions_of.setdefault(name, []).append(question)
    return list(questions.values()), questions_of


def _get(owner: object, key: str, kind: type, where: str) -> Any:
    if not isinstance(owner, dict) or not isinstance(owner.get(key), kind):
        raise InputError(f"{where} has no valid {key!r}. Use TriviaQA's qa/wikipedia-train.json.")
    return owner[key]


def read_paragraph(document: str, max_num_tokens: int) -> Paragraph:
    """Returns the first `max_num_tokens` tokens of a document, and the text up to the last of these tokens."""
    tokens: list[str] = []
    spans: list[tuple[int, int]] = []
    for word in re.finditer(r"\S+", document):
        for token, start, end in _tokens_of_word(word.group()):
            tokens.append(token)
            spans.append((word.start() + start, word.start() + end))
            if len(tokens) == max_num_tokens:
                return Paragraph(document[: spans[-1][1]], tokens, spans)
    return Paragraph(document, tokens, spans)


@functools.lru_cache(1 << 18)
def _tokens_of_word(word: str) -> list[tuple[str, int, int]]:
    return [(token.text(), *token.span()) for token in _TOKENIZER.tokenize_with_origins(word)]


def find_answer(paragraph: Paragraph, answers: Sequence[tuple[str, ...]]) -> tuple[str, int] | None:
    """Returns the first answer in a paragraph, in the paragraph's casing, and the offset; None without an answer."""
    longest_first: dict[str, list[tuple[str, ...]]] = {}
    for answer in sorted(answers, key=len, reverse=True):
        longest_first.setdefault(answer[0], []).append(answer)
    for i, token in enumerate(paragraph.tokens):
        for answer in longest_first.get(token, ()):
            if tuple(paragraph.tokens[i : i + len(answer)]) == answer:
                start, end = paragraph.spans[i][0], paragraph.spans[i + len(answer) - 1][1]
                return paragraph.context[start:end], start
    return None


def make_article(name: str, document: str, questions: Sequence[Question], max_num_tokens: int) -> dict[str, Any] | None:
    """Returns a SQuAD article with a document's paragraph and the questions that it answers; None without questions.

    Args:
      name: File name of the document, used as title and in the question ids.
      document: Text of the document.
      questions: Questions about the document.
      max_num_tokens: Length of the paragraph in tokens.
    """
    paragraph = read_paragraph(document, max_num_tokens)
    answered = [(question, find_answer(paragraph, question.answers)) for question in questions]
    qas = [
        {
            "id": f"{question.question_id}--{name}",
            "question": question.text,
            "answers": [{"text": answer[0], "answer_start": answer[1]}],
        }
        for question, answer in answered
        if answer is not None
    ]
    return {"title": name, "paragraphs": [{"context": paragraph.context, "qas": qas}]} if qas else None


def convert(triviaqa_file: str, evidence_dir: str, output_file: str, max_num_tokens: int = 400) -> str:
    """Converts TriviaQA to a SQuAD-format file, which is written completely or not at all.

    Returns:
      A message with the counts.

    Raises:
      InputError: if the questions do not have TriviaQA's layout, a document is missing or not UTF-8, or no document
        answers a question.
    """
    path_checks.check_output_files([output_file], "--output_file", {"--triviaqa_file": [triviaqa_file]})
    questions, questions_of = read_triviaqa(triviaqa_file)
    articles, answered = 0, collections.Counter[str]()
    with files.replacing(output_file) as writer, progress_bar(len(questions_of), "converting", unit="document") as bar:
        writer.write(f'{{"version": "TriviaQA-Wiki, first {max_num_tokens} tokens", "data": [')
        for name, asked in questions_of.items():
            path = files.require_file(os.path.join(evidence_dir, name), "--evidence_dir", may_be_empty=True)
            with files.open_file(path, "rb") as reader:
                try:
                    document = reader.read().decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"--evidence_dir: {path} is not UTF-8 (byte {error.start}). Unpack it again."
                    ) from None
            article = make_article(name, document, asked, max_num_tokens)
            if article is not None:
                writer.write(",\n" if articles else "\n")
                writer.write(json.dumps(article, ensure_ascii=False))
                articles += 1
                answered.update(qa["id"].removesuffix(f"--{name}") for qa in article["paragraphs"][0]["qas"])
            bar.update(1)
        if not articles:
            raise InputError(
                f"--triviaqa_file: no document of {triviaqa_file} has an answer in the first {max_num_tokens} tokens. "
                "Check the files."
            )
        writer.write("\n]}\n")
    return (
        f"{answered.total()} questions about {articles} paragraphs, from {len(questions)} questions about "
        f"{len(questions_of)} documents. {len(questions) - len(answered)} questions have no answer in a paragraph."
    )


def main() -> None:
    """Converts the files and prints the counts."""
    messages.say(convert(_TRIVIAQA_FILE.value, _EVIDENCE_DIR.value, _OUTPUT_FILE.value, _MAX_NUM_TOKENS.value))


if __name__ == "__main__":
    program.run(main, required=["triviaqa_file", "evidence_dir", "output_file"])
