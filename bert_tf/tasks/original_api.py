"""The functions and classes of the original run_classifier.py and run_squad.py, with their names and arguments.

In code written for the original, only the imports change. Values that the original reads from flags are additional
arguments. The functions call the tokenization, windows and answers of this package's tasks.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.tasks.sentences.examples import InputExample
from bert_tf.tasks.squad.decoding import answer_questions, get_final_text, join_pieces
from bert_tf.tasks.squad.questions import SquadExample, read_squad_examples as read_squad_examples
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.windows import SquadWindows, featurize
from bert_tf.text import FullTokenizer


@dataclasses.dataclass(frozen=True)
class InputFeatures:
    """The padded features of an example."""

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: int
    is_real_example: bool = True


def convert_single_example(
    ex_index: int,
    example: InputExample,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: FullTokenizer,
) -> InputFeatures:
    """Returns an example's features.

    Args:
      ex_index: the example's index, for messages.
      example: the example.
      label_list: the labels in the order of their ids.
      max_seq_length: the length of the lists.
      tokenizer: the model's tokenizer.

    Raises:
      InputError: if the label is not one of `label_list`.
    """
    if example.label not in label_list:
        raise InputError(f"example {ex_index}: the label {example.label!r} is unknown. Use one of {label_list}.")
    ids, segment_ids, _ = tokenizer.pack(example.text_a, example.text_b, max_seq_length)
    return InputFeatures(*packing.pad(ids, segment_ids, max_seq_length), label_id=label_list.index(example.label))


@dataclasses.dataclass
class SquadFeatures:
    """One window, with the positions of its tokens in the paragraph: `InputFeatures` of run_squad.py.

    Attributes:
      unique_id: id of the window in the file; the first id is 1,000,000,000.
      example_index: index of the question in the file.
      doc_span_index: index of the window among the windows of the question.
      tokens: [CLS] question [SEP] window [SEP], without padding.
      token_to_orig_map: maps positions in `tokens` to indices of words in the paragraph.
      token_is_max_context: maps positions in `tokens` to True if no other window has more context around the token.
      input_ids: ids of `tokens`, padded.
      input_mask: 1 for tokens, 0 for padding.
      segment_ids: 1 for the window and its [SEP], 0 elsewhere.
      start_position: position of the answer's first token; 0 if the window does not contain the answer; None in
        prediction.
      end_position: position of the answer's last token.
      is_impossible: whether the question has no answer.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list[str]
    token_to_orig_map: dict[int, int]
    token_is_max_context: dict[int, bool]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool | None = None


class RawResult(NamedTuple):
    """The output of the model for one window: two logits for each token."""

    unique_id: int
    start_logits: list[float]
    end_logits: list[float]


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[SquadFeatures], object],
) -> None:
    """Splits every example into windows and passes each window to `output_fn`.

    Args:
      examples: see `read_squad_examples`.
      tokenizer: the model's tokenizer.
      max_seq_length: length of a padded window in tokens.
      doc_stride: number of tokens between the starts of two windows.
      max_query_length: longest question in tokens; longer ones are truncated.
      is_training: whether the examples' answers are needed.
      output_fn: called with the features of each window.

    Raises:
      InputError: if a question leaves no room for text.
    """
    examples = list(examples)
    windows = featurize(examples, tokenizer, SquadConfig(max_seq_length, doc_stride, max_query_length), is_training)
    ends = np.cumsum(windows.lengths)
    columns = windows.example_index, windows.first_lengths, windows.text_start, ends - windows.lengths, ends
    first_windows = np.searchsorted(windows.example_index, windows.example_index).tolist()
    positions = np.stack([windows.per_example[f"{end}_positions"] for end in ("start", "end")], axis=1).tolist()
    for number, (index, first, text_start, begin, end) in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
        ids = windows.input_ids[begin:end].tolist()
        text = range(first, len(ids) - 1)
        document = windows.documents[windows.document_of_example[index]]
        words = np.searchsorted(document.first_piece, np.array(text) - first + text_start, side="right") - 1
        start_position, end_position = positions[number] if is_training else (None, None)
        is_max_context = windows.is_max_context[begin + first : end - 1].tolist()
        output_fn(
            SquadFeatures(
                unique_id=int(windows.unique_ids[number]),
                example_index=index,
                doc_span_index=number - first_windows[number],
                tokens=tokenizer.convert_ids_to_tokens(ids),
                token_to_orig_map=dict(zip(text, words.tolist(), strict=True)),
                token_is_max_context=dict(zip(text, is_max_context, strict=True)),
                **packing.pad(ids, [0] * first + [1] * (len(ids) - first), max_seq_length)._asdict(),
                start_position=start_position,
                end_position=end_position,
                is_impossible=examples[index].is_impossible,
            )
        )


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Sequence[SquadFeatures],
    all_results: Sequence[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    verbose_logging: bool = False,
) -> None:
    """Answers every question and writes the answers, the n-best lists and, for 2.0, the odds for no answer.

    Args:
      all_examples: the questions.
      all_features: the windows of the questions.
      all_results: the logits of every window.
      n_best_size: number of start and end positions of a window to combine, and of answers to list.
      max_answer_length: longest answer in tokens.
      do_lower_case: whether the tokens are lower-cased.
      output_prediction_file: JSON file that maps ids to answers.
      output_nbest_file: JSON file that maps ids to answers with probabilities and logits.
      output_null_log_odds_file: JSON file that maps ids to the no-answer score minus the best answer's score; 2.0 only.
      version_2_with_negative: whether a question may have no answer.
      null_score_diff_threshold: a question with odds above this value has no answer.
      verbose_logging: whether to log answers that can't be aligned with the text.
    """
    features = [feature for feature in all_features if feature.example_index < len(all_examples)]
    features.sort(key=lambda feature: feature.example_index)
    result_of_window = {result.unique_id: result for result in all_results}
    results = [result_of_window[feature.unique_id] for feature in features]

    def text(window: int, start: int, end: int) -> str:
        feature = features[window]
        first_word, last_word = (feature.token_to_orig_map[position] for position in (start, end))
        words = " ".join(all_examples[feature.example_index].doc_tokens[first_word : last_word + 1])
        return get_final_text(join_pieces(feature.tokens[start : end + 1]), words, do_lower_case, verbose_logging)

    predictions = answer_questions(
        [example.qas_id for example in all_examples],
        _to_windows(features),
        np.array([result.start_logits for result in results] or np.zeros([0, 1])),
        np.array([result.end_logits for result in results] or np.zeros([0, 1])),
        text,
        SquadConfig(
            n_best_size=n_best_size,
            max_answer_length=max_answer_length,
            version_2_with_negative=version_2_with_negative,
            pad_to_max_seq_length=True,
        ),
        null_score_diff_threshold,
    )
    for line in predictions.report():
        logging.warning("%s", line)
    null_file = output_null_log_odds_file if version_2_with_negative else None
    predictions.write(output_prediction_file, output_nbest_file, null_file)


def _to_windows(features: Sequence[SquadFeatures]) -> SquadWindows:
    """Returns the windows for `answer_questions`, without ids and documents."""
    is_max_context = [f.token_is_max_context.get(i, False) for f in features for i in range(len(f.tokens))]
    return SquadWindows(
        input_ids=np.zeros(0, np.int32),
        lengths=np.array([len(feature.tokens) for feature in features], dtype=np.int32),
        first_lengths=np.array([min(feature.token_to_orig_map) for feature in features], dtype=np.int32),
        is_max_context=np.array(is_max_context, dtype=bool),
        text_start=np.zeros(len(features), np.int64),
        example_index=np.array([feature.example_index for feature in features], dtype=np.int64),
        documents=[],
        document_of_example=np.zeros(0, np.int64),
    )
