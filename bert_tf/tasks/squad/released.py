"""The release's functions and classes, with its names and argument orders, as adapters of the array functions.

Only the arguments that the release reads from flags are added. The windows come from `windows.featurize`, the answers
from `decoding.answer_questions`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bert_tf.runtime import files
from bert_tf.sequences import packing
from bert_tf.sequences.example_format import serialize, squad_features
from bert_tf.tasks.squad.decoding import answer_questions
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.realignment import get_final_text, join_pieces
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.windows import SquadWindows, featurize
from bert_tf.tokenization import FullTokenizer


@dataclasses.dataclass
class InputFeatures:
    """One window, with the places of its tokens in the paragraph.

    Attributes:
      unique_id: the window's number in the file; the first is 1,000,000,000.
      example_index: the question's place in the file.
      doc_span_index: the window's place among those of its question.
      tokens: [CLS] question [SEP] window [SEP], without padding.
      token_to_orig_map: position in `tokens` -> index of the paragraph's word.
      token_is_max_context: position in `tokens` -> whether no other window shows more context around this piece.
      input_ids: ids of `tokens`, padded.
      input_mask: 1 for tokens, 0 for padding.
      segment_ids: 1 for the window and its [SEP], 0 elsewhere.
      start_position: the answer's first token; 0 if the window doesn't hold the answer, None when predicting.
      end_position: the answer's last token.
      is_impossible: the example's.
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
    """The model's output for one window: two logits for each of its tokens."""

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
    output_fn: Callable[[InputFeatures], object],
) -> None:
    """Cuts every example into windows and hands each window to `output_fn`.

    Args:
      examples: see `read_squad_examples`.
      tokenizer: the model's.
      max_seq_length: tokens of a window, with padding.
      doc_stride: pieces between the begins of two windows.
      max_query_length: the longest question, in pieces; longer ones are cut at the end.
      is_training: whether the examples' answers are needed.
      output_fn: called with each `InputFeatures`.

    Raises:
      InputError: if a question leaves no room for text, or the windows don't advance (names the question).
    """
    examples = list(examples)
    windows = featurize(examples, tokenizer, SquadConfig(max_seq_length, doc_stride, max_query_length), is_training)
    ends = np.cumsum(windows.lengths)
    columns = windows.example_index, windows.first_lengths, windows.text_start, ends - windows.lengths, ends
    first_windows = np.searchsorted(windows.example_index, windows.example_index).tolist()
    unique_ids = windows.unique_ids.tolist()
    positions = np.stack([windows.per_example[f"{end}_positions"] for end in ("start", "end")], axis=1).tolist()
    for number, (index, first, text_start, begin, end) in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
        ids = windows.input_ids[begin:end].tolist()
        text = range(first, len(ids) - 1)
        document = windows.documents[windows.document_of_example[index]]
        words = np.searchsorted(document.first_piece, np.array(text) - first + text_start, side="right") - 1
        start_position, end_position = positions[number] if is_training else (None, None)
        output_fn(
            InputFeatures(
                unique_id=unique_ids[number],
                example_index=index,
                doc_span_index=number - first_windows[number],
                tokens=tokenizer.convert_ids_to_tokens(ids),
                token_to_orig_map=dict(zip(text, words.tolist(), strict=True)),
                token_is_max_context=dict(
                    zip(text, windows.is_max_context[begin + first : end - 1].tolist(), strict=True)
                ),
                **packing.pad(ids, [0] * first + [1] * (len(ids) - first), max_seq_length)._asdict(),
                start_position=start_position,
                end_position=end_position,
                is_impossible=examples[index].is_impossible,
            )
        )


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Sequence[InputFeatures],
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
      all_features: their windows.
      all_results: the logits of every window.
      n_best_size: how many start and end positions of a window are paired, and how many answers are listed.
      max_answer_length: the longest answer, in pieces.
      do_lower_case: whether the pieces are lower-cased.
      output_prediction_file: JSON, id -> answer.
      output_nbest_file: JSON, id -> answers with probabilities and logits.
      output_null_log_odds_file: JSON, id -> score of no answer minus that of the best answer; written for 2.0 only.
      version_2_with_negative: whether a question may have no answer.
      null_score_diff_threshold: odds above it mean that there is no answer.
      verbose_logging: whether the log names answers that can't be aligned with the text.
    """
    features = [feature for feature in all_features if feature.example_index < len(all_examples)]
    features.sort(key=lambda feature: feature.example_index)
    result_of_window = {result.unique_id: result for result in all_results}
    results = [result_of_window[feature.unique_id] for feature in features]
    start_logits = np.array([result.start_logits for result in results] or np.zeros([0, 1]))
    end_logits = np.array([result.end_logits for result in results] or np.zeros([0, 1]))
    length = start_logits.shape[1]

    def text(first_token: int, last_token: int) -> str:
        number, start = divmod(first_token, length)
        end = last_token - number * length
        feature = features[number]
        words = [feature.token_to_orig_map[position] for position in (start, end)]
        orig_text = " ".join(all_examples[feature.example_index].doc_tokens[words[0] : words[1] + 1])
        return get_final_text(join_pieces(feature.tokens[start : end + 1]), orig_text, do_lower_case, verbose_logging)

    predictions = answer_questions(
        [example.qas_id for example in all_examples],
        _to_windows(features),
        start_logits,
        end_logits,
        window_begins=np.arange(len(features)) * length,
        text=text,
        config=SquadConfig(
            n_best_size=n_best_size,
            max_answer_length=max_answer_length,
            version_2_with_negative=version_2_with_negative,
            pad_to_max_seq_length=True,
        ),
        null_score_diff_threshold=null_score_diff_threshold,
    )
    for line in predictions.report():
        logging.warning("%s", line)
    null_file = output_null_log_odds_file if version_2_with_negative else None
    predictions.write(output_prediction_file, output_nbest_file, null_file)


def _to_windows(features: Sequence[InputFeatures]) -> SquadWindows:
    """The windows as `answer_questions` needs them: without ids and documents."""
    is_max_context = [
        feature.token_is_max_context.get(position, False)
        for feature in features
        for position in range(len(feature.tokens))
    ]
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


class FeatureWriter:
    """Writes windows as TFRecords with the release's entries; the file exists once the writer is closed.

    Args:
      filename: the file.
      is_training: whether the answers are written.
    """

    def __init__(self, filename: str, is_training: bool) -> None:
        import tensorflow as tf

        self.filename = filename
        self.is_training = is_training
        self.num_features = 0
        self._file = files.replacing(filename, "wb")
        self._writer = tf.io.TFRecordWriter(self._file.__enter__().name)

    def process_feature(self, feature: InputFeatures) -> None:
        """Writes one window."""
        values = {
            "unique_ids": [feature.unique_id],
            "input_ids": feature.input_ids,
            "input_mask": feature.input_mask,
            "segment_ids": feature.segment_ids,
            "start_positions": [feature.start_position],
            "end_positions": [feature.end_position],
            "is_impossible": [int(bool(feature.is_impossible))],
        }
        self._writer.write(serialize(squad_features(len(feature.input_ids), self.is_training), values))
        self.num_features += 1

    def close(self) -> None:
        """Finishes the file."""
        self._writer.close()
        self._file.__exit__(None, None, None)
