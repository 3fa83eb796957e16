"""Answers typed questions about typed paragraphs."""

from collections.abc import Iterable, Iterator

from bert_tf.runtime import reporting
from bert_tf.runtime.messages import say
from bert_tf.runtime.program import typed_lines
from bert_tf.tasks.squad.answerer import Answerer
from bert_tf.tasks.squad.questions import make_example

# The number of answers to show for each question.
_SHOWN_ANSWERS = 5


def interact(answerer: Answerer, lines: Iterable[str] | None = None) -> None:
    """Reads typed paragraphs with their questions, and prints the best answers to standard output.

    An empty line ends a paragraph. Each following line is a question, up to the next empty line. Further empty lines
    before a paragraph are ignored.

    Args:
      answerer: the models that answer.
      lines: the lines that the user types. Default: standard input.
    """
    typed = typed_lines() if lines is None else (line.rstrip("\r\n") for line in lines)
    while True:
        say("Paragraph (end it with an empty line; exit with Ctrl-D):")
        first = next((line for line in typed if line.strip()), None)
        if first is None:
            return
        context = "\n".join([first, *_up_to_empty_line(typed)])
        say("Questions (enter an empty line for another paragraph):")
        for question in _up_to_empty_line(typed):
            print("\n".join(answer_lines(answerer, context, question)), flush=True)


def _up_to_empty_line(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def answer_lines(answerer: Answerer, context: str, question: str) -> list[str]:
    """Returns a table of the best answers: probability among the n best, score (sum of the two logits), text.

    For SQuAD 2.0, a further line contains the null odds, the threshold, and the resulting answer.
    """
    task, example = answerer.task, make_example("typed", question, context)
    windows = answerer.data.featurize([example], "typed")
    outputs = answerer.predict(windows, answerer.settings.predict_batch_size, shown=False)
    predictions = task.decode([example], windows, outputs)
    rows = [
        {
            "probability": entry["probability"],
            "score": entry["start_logit"] + entry["end_logit"],
            "answer": entry["text"] or "(none)",
        }
        for entry in predictions.n_best["typed"][:_SHOWN_ANSWERS]
    ]
    shown = [reporting.table(rows)]
    if task.config.version_2_with_negative:
        odds, threshold = predictions.null_odds["typed"], task.null_score_diff_threshold
        verdict = predictions.answers["typed"] or "(none)"
        shown.append(f"odds for no answer {odds:.4g}, threshold {threshold:.4g}: {verdict}")
    return shown
