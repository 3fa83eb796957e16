"""Questions that somebody types, answered one after the other by models that are loaded once."""

from collections.abc import Iterable, Iterator

from bert_tf.runtime import reporting
from bert_tf.runtime.program import say, typed_lines
from bert_tf.tasks.squad.answerer import Answerer
from bert_tf.tasks.squad.examples import make_example

# How many answers are shown.
_SHOWN = 5


def interact(answerer: Answerer, lines: Iterable[str] | None = None) -> None:
    """Reads paragraphs, each with questions, and prints the best answers to standard output.

    A paragraph ends at an empty line; then every line is a question, up to the next empty line, which ends the
    questions of this paragraph. Further empty lines before a paragraph say nothing.

    Args:
      answerer: whose answers are shown.
      lines: what is typed; by default the standard input.
    """
    typed = typed_lines() if lines is None else (line.rstrip("\r\n") for line in lines)
    while True:
        say("Paragraph (an empty line ends it; the end of the input, or Ctrl-D, ends the program):")
        first = next((line for line in typed if line.strip()), None)
        if first is None:
            return
        context = "\n".join([first, *_up_to_empty_line(typed)])
        say("Questions (an empty line begins another paragraph):")
        for question in _up_to_empty_line(typed):
            print("\n".join(answer_lines(answerer, context, question)), flush=True)


def _up_to_empty_line(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def answer_lines(answerer: Answerer, context: str, question: str) -> list[str]:
    """A table of the best answers: probability among the n best, score (sum of the two logits), text.

    With SQuAD 2.0 the odds for no answer, the threshold, and what follows from them stand behind it.
    """
    task, run = answerer.run.task, answerer.run
    example = make_example("typed", question, context)
    windows = task.featurize([example], run.tokenizer, run.max_seq_length)
    predictions = answerer.answer([example], windows, answerer.outputs(windows, shown=False))
    rows = [
        {
            "probability": entry["probability"],
            "score": entry["start_logit"] + entry["end_logit"],
            "answer": entry["text"] or "(none)",
        }
        for entry in predictions.n_best["typed"][:_SHOWN]
    ]
    shown = [reporting.table(rows)]
    if task.config.version_2_with_negative:
        odds, threshold = predictions.null_odds["typed"], answerer.null_score_diff_threshold
        verdict = predictions.answers["typed"] or "(none)"
        shown.append(f"odds for no answer {odds:.4g}, threshold {threshold:.4g}: {verdict}")
    return shown
