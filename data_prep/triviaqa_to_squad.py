"""Makes SQuAD-format training data from TriviaQA-Wiki, as the paper's footnote 12 describes it.

    python -m data_prep.triviaqa_to_squad \\
        --triviaqa_file=qa/wikipedia-train.json --evidence_dir=evidence/wikipedia --output_file=triviaqa-train.json

A paragraph consists of the first 400 tokens of a document. Each question is asked about each of its documents if the
paragraph contains one of its possible answers. The paper doesn't define a token; here it is a word or a punctuation
mark, as split by the basic tokenizer. A paragraph contains an answer if it contains the answer's tokens one after the
other, in any casing. If there are several places, the first one is used, with the longest answer there. The context is
the document's own text, so offsets are exact.
"""

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags

from bert_tf.runtime import files, json_files, program
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.runtime.reporting import progress_bar
from bert_tf.tokenization import BasicTokenizer

_TRIVIAQA_FILE = flags.DEFINE_string("triviaqa_file", None, "TriviaQA's qa/wikipedia-train.json (or -dev).")
_EVIDENCE_DIR = flags.DEFINE_string("evidence_dir", None, "TriviaQA's folder evidence/wikipedia.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "The SQuAD-format JSON file to write.")
_MAX_NUM_TOKENS = flags.DEFINE_integer("max_num_tokens", 400, "Number of tokens in a paragraph.")

# The number of words that are remembered with their tokens.
_MEMO_WORDS = 1 << 18
_NAMED_IDS = 10
_TOKENIZER = BasicTokenizer(do_lower_case=True)


class Question(NamedTuple):
    """A question and its possible answers as lower-case tokens."""

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
      The questions; and for each document's file name the questions about it. Both are in the file's order.

    Raises:
      InputError: if the file doesn't have TriviaQA's layout, or an id occurs twice.
    """
    what = f"--triviaqa_file: {path}"
    questions: dict[str, Question] = {}
    questions_of: dict[str, list[Question]] = {}
    for i, entry in enumerate(_get(json_files.read(path, "--triviaqa_file", is_data=True), "Data", list, what)):
        question_id = _get(entry, "QuestionId", str, f"{what}, Data[{i}]")
        where = f"{what}, question {question_id!r}"
        answer = _get(entry, "Answer", dict, where)
        aliases = [_get(answer, "Value", str, where), *_get(answer, "Aliases", list, where)]
        tokenized = dict.fromkeys(tuple(_TOKENIZER.tokenize(alias)) for alias in aliases)
        question = Question(question_id, _get(entry, "Question", str, where), tuple(filter(None, tokenized)))
        if question_id in questions:
            raise InputError(f"{where} occurs twice.")
        questions[question_id] = question
        pages = _get(entry, "EntityPages", list, where)
        for name in dict.fromkeys(_get(page, "Filename", str, where) for page in pages):
            questions_of.setdefault(name, []).append(question)
    return list(questions.values()), questions_of


def _get(owner: object, key: str, kind: type, where: str) -> Any:
    if not isinstance(owner, dict) or not isinstance(owner.get(key), kind):
        raise InputError(f"{where} has no {key!r} as in TriviaQA's qa/wikipedia-train.json.")
    return owner[key]


def read_paragraph(document: str, max_num_tokens: int) -> Paragraph:
    """Returns the first tokens of a document, and its text up to the last of these tokens."""
    tokens: list[str] = []
    spans: list[tuple[int, int]] = []
    for word in re.finditer(r"\S+", document):
        for token, start, end in _tokens_of_word(word.group()):
            tokens.append(token)
            spans.append((word.start() + start, word.start() + end))
            if len(tokens) == max_num_tokens:
                return Paragraph(document[: spans[-1][1]], tokens, spans)
    return Paragraph(document, tokens, spans)


@functools.lru_cache(_MEMO_WORDS)
def _tokens_of_word(word: str) -> list[tuple[str, int, int]]:
    return [(token.text(), *token.span()) for token in _TOKENIZER.tokenize_with_origins(word)]


def find_answer(paragraph: Paragraph, answers: Sequence[tuple[str, ...]]) -> tuple[str, int] | None:
    """Returns the first possible answer in a paragraph, as written there, and its place; None if there is none."""
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
    """Makes a SQuAD article of a document's paragraph and the questions that it answers; None if it answers none.

    Args:
      name: the document's file name, used in the title and in the questions' ids.
      document: its text.
      questions: the questions about it.
      max_num_tokens: length of the paragraph in tokens.
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


def _read_document(evidence_dir: str, name: str, question: Question) -> str:
    path = os.path.join(evidence_dir, name)
    if not files.exists(path):
        raise InputError(
            f"--evidence_dir: there is no document {path}, which question {question.question_id!r} is about. "
            "Unpack TriviaQA's evidence completely."
        )
    with files.open_file(path, "rb") as reader:
        data = reader.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--evidence_dir: {path} is not UTF-8 (byte {error.start}).") from None


def convert(triviaqa_file: str, evidence_dir: str, output_file: str, max_num_tokens: int = 400) -> list[str]:
    """Converts TriviaQA to a SQuAD-format file, which is written completely or not at all.

    Returns:
      Messages with the counts, and with the questions that no paragraph answers.

    Raises:
      InputError: if the questions don't have TriviaQA's layout, a document is missing or not UTF-8, no question can be
        used, or the output is a folder.
    """
    require_whole("--max_num_tokens", max_num_tokens, 1)
    files.check_output_files([output_file], "--output_file", {"--triviaqa_file": [triviaqa_file]})
    questions, questions_of = read_triviaqa(triviaqa_file)
    unanswered = {question.question_id for question in questions}
    num_documents = num_pairs = 0
    with files.replacing(output_file) as writer, progress_bar(len(questions_of), "converting", unit="document") as bar:
        writer.write(f'{{"version": "TriviaQA-Wiki, first {max_num_tokens} tokens", "data": [')
        for name, asked in questions_of.items():
            article = make_article(name, _read_document(evidence_dir, name, asked[0]), asked, max_num_tokens)
            if article is not None:
                writer.write(",\n" if num_documents else "\n")
                writer.write(json.dumps(article, ensure_ascii=False))
                ids = [qa["id"].removesuffix(f"--{name}") for qa in article["paragraphs"][0]["qas"]]
                unanswered.difference_update(ids)
                num_documents += 1
                num_pairs += len(ids)
            bar.update(1)
        if not num_documents:
            raise InputError(f"--triviaqa_file: no document of {triviaqa_file} begins with an answer.")
        writer.write("\n]}\n")
    report = [
        f"{num_pairs} questions about {num_documents} paragraphs, from {len(questions)} questions about "
        f"{len(questions_of)} documents"
    ]
    if unanswered:
        named = [question.question_id for question in questions if question.question_id in unanswered]
        more = ", ..." if len(named) > _NAMED_IDS else ""
        report.append(f"no paragraph answers {len(named)} of them: {', '.join(named[:_NAMED_IDS])}{more}")
    return report


def main() -> None:
    """Converts the files and prints the counts."""
    for line in convert(_TRIVIAQA_FILE.value, _EVIDENCE_DIR.value, _OUTPUT_FILE.value, _MAX_NUM_TOKENS.value):
        program.say(line)


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["triviaqa_file", "evidence_dir", "output_file"])


if __name__ == "__main__":
    cli()
