"""The served model of a fine-tuned tagger: predicts the tags of words and the entities, for raw texts or words.

The tag of a word is the tag of the word's first token. A text that is too long for the model is split into several
windows, as in `tagging_task`. Everything is computed inside a graph.

Axis letters: B texts, W words of all texts, P tokens of all texts, S windows of all texts, E entities of all texts,
n tokens of all windows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.checkpoints.class_names import tag_classes
from bert_tf.finetuning.models import TokenModel
from bert_tf.graphs.encoder import InferenceEncoder, in_parts
from bert_tf.graphs.exportable import Exportable, FinishedRun
from bert_tf.graphs.packing import TokenBatch, by_row
from bert_tf.graphs.text_reader import IDS, TEXT_LISTS, TEXTS, Signature, read_ids, signature
from bert_tf.graphs.tokenization import GraphTokenizer, valid_utf8
from bert_tf.tasks.tagging.schemes import PLAIN
from bert_tf.text import Tokenizer

# Punctuation, quotes and brackets, which are separated from the start and end of a word.
_EDGE_MARKS = r"[.,;:!?¿¡…。、，；：！？\"'\p{Pi}\p{Pf}\p{Ps}\p{Pe}]"
# The white space of Python's `str.split`.
_SPACES = r"[\s\v\x1c-\x1f\x{85}\p{Z}]"
_NO_POSITION = -1


class _Entities(NamedTuple):
    """Entities of a batch of texts, [B, (entities)].

    Attributes:
      types: the entity types.
      scores: the lowest score of the words of each entity.
      first_words: index of the first word.
      end_words: index of the last word plus 1.
    """

    types: tf.RaggedTensor
    scores: tf.RaggedTensor
    first_words: tf.RaggedTensor
    end_words: tf.RaggedTensor


class ServedTagger(tf.Module):
    """Tags words, and finds entities.

    Args:
      encoder: the encoder with the output layer.
      tokenizer: the model's tokenizer.
      classes: the classes of the model: plain tags, or entity tags in any scheme.
      is_plain: whether the tags are plain. If O is one of the plain tags, neighbouring words with the same tag other
        than O form an entity.
      max_seq_length: longer texts are split into several windows.
    """

    def __init__(
        self,
        encoder: InferenceEncoder,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        is_plain: bool,
        max_seq_length: int,
    ) -> None:
        super().__init__(name="tagger")
        self._encoder = encoder
        self._tokenizer = GraphTokenizer.of(tokenizer)
        self._cls, self._sep, self._unk = (tokenizer.vocab[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
        types = [tag if is_plain else tag[2:] or tag for tag in classes]
        kinds = list(dict.fromkeys(["O", *types]))
        has_entities = "O" in types
        self._kinds = tf.constant(kinds)
        # For each class: the index of the type (0 for no entity), whether it continues an entity, whether it ends one.
        self._kind_of_class = tf.constant([kinds.index(kind) * has_entities for kind in types])
        self._is_inside = tf.constant(
            [has_entities and tag != "O" and (is_plain or tag[0] in "IMEL") for tag in classes]
        )
        self._is_last = tf.constant([not is_plain and tag[0] in "ELSUW" for tag in classes])
        self._tags = tf.constant(list(classes))
        self._room = max_seq_length - 2

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        - `serving_default` takes text_a [B]. Words are separated by white space. Punctuation, quotes and brackets at
          the start or end of a word are separate words; inside, they belong to the word. For words, it returns
          `tokens`, `tags`, `scores` (the probabilities of the tags), `token_starts` and `token_ends` [B, W], padded
          after the first `num_tokens` [B]. For entities, it returns `entities` (the texts), `entity_types`,
          `entity_scores` (the lowest score of the words), `entity_starts` and `entity_ends` [B, E], padded after the
          first `num_entities` [B]. Starts and ends are positions of characters [start, end), in code points.
        - `words` takes words [B, W], padded with "". It returns `num_tokens`, `tags`, `scores`, `num_entities`,
          `entity_types`, `entity_scores`, `entity_starts` and `entity_ends`; starts and ends are indices of words.
        - `token_ids` takes input_ids, input_mask and segment_ids [B, T], and returns `logits` [B, T, C].
        """
        return {
            "serving_default": signature(self._from_texts, text_a=TEXTS),
            "words": signature(self._from_words, words=TEXT_LISTS),
            "token_ids": signature(self._from_ids, **IDS),
        }

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        return {"logits": batch.padded(self._encoder.token_logits(batch), 0, tf.shape(input_ids)[1])}

    def _from_words(self, words: tf.Tensor) -> dict[str, tf.Tensor]:
        lengths = tf.reduce_sum(tf.cast(tf.strings.length(words) > 0, tf.int64), axis=1)
        message = 'words must have "" only after the last word of each text.'
        tf.debugging.Assert(tf.reduce_all(tf.sequence_mask(lengths, tf.shape(words)[1]) == (words != "")), [message])
        outputs, entities = self._tagged(tf.RaggedTensor.from_tensor(words, lengths))
        return outputs | {
            "entity_starts": entities.first_words.to_tensor(_NO_POSITION),
            "entity_ends": entities.end_words.to_tensor(_NO_POSITION),
        }

    def _from_texts(self, text_a: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = valid_utf8(text_a)
        words, starts, ends = _split_words(texts)
        outputs, entities = self._tagged(words)
        to_characters = _CharacterCounter(texts)
        first_bytes = _gather_words(starts, entities.first_words)
        end_bytes = _gather_words(ends, entities.end_words - 1)
        entity_texts = _substrings(texts, first_bytes, end_bytes)
        return outputs | {
            "tokens": words.to_tensor(""),
            "token_starts": to_characters(starts).to_tensor(_NO_POSITION),
            "token_ends": to_characters(ends).to_tensor(_NO_POSITION),
            "entities": entity_texts.to_tensor(""),
            "entity_starts": to_characters(first_bytes).to_tensor(_NO_POSITION),
            "entity_ends": to_characters(end_bytes).to_tensor(_NO_POSITION),
        }

    def _tagged(self, words: tf.RaggedTensor) -> tuple[dict[str, tf.Tensor], _Entities]:
        """Returns the outputs that `serving_default` and `words` have in common, and the entities."""
        tag_ids, scores = self._tag_ids(words)
        entities = self._entities(tag_ids, scores)
        tags = tag_ids.with_flat_values(tf.gather(self._tags, tag_ids.flat_values))
        outputs = {
            "num_tokens": words.row_lengths(),
            "tags": tags.to_tensor(""),
            "scores": scores.to_tensor(0.0),
            "num_entities": entities.types.row_lengths(),
            "entity_types": entities.types.to_tensor(""),
            "entity_scores": entities.scores.to_tensor(0.0),
        }
        return outputs, entities

    def _tag_ids(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the class ids of words, int32, and the probabilities of these classes, both [B, (words)].

        See `tagging.windows` for the windows.
        """
        pieces = self._tokenizer.tokenize(words.flat_values)  # [W, (pieces)]
        is_empty = pieces.row_lengths() == 0
        unknown = by_row(tf.fill([tf.math.count_nonzero(is_empty)], self._unk), is_empty)
        pieces = tf.concat([pieces, unknown], axis=1)
        first_word = words.row_splits
        first_piece = tf.gather(pieces.row_splits, first_word)  # [B + 1], index of the first token of each text
        begins, lengths = first_piece[:-1], first_piece[1:] - first_piece[:-1]
        step = tf.where(lengths <= self._room, tf.maximum(lengths, 1), max(1, self._room // 2))
        windows = (lengths + step - 1) // step  # [B]

        def per_window(values: tf.Tensor) -> tf.Tensor:  # [B] -> [S]
            return tf.repeat(values, windows)

        part_start = tf.ragged.range(windows).flat_values * per_window(step)
        stop = per_window(lengths)
        context = self._room - (tf.minimum(part_start + per_window(step), stop) - part_start)
        begin = tf.maximum(tf.minimum(part_start - context // 2, stop - self._room), 0)
        end = tf.minimum(begin + self._room, stop)
        indices = tf.ragged.range(per_window(begins) + begin, per_window(begins) + end)
        text = indices.with_flat_values(tf.gather(pieces.flat_values, indices.flat_values))
        cls, sep = (tf.fill([tf.size(begin), 1], token) for token in (self._cls, self._sep))
        ids = tf.concat([cls, text, sep], axis=1)
        zeros = tf.zeros_like(ids.flat_values)
        batch = TokenBatch(ids.flat_values, zeros, zeros + 1, tf.cast(ids.row_lengths(), tf.int32))
        position = pieces.row_starts() - tf.gather(begins, words.value_rowids())  # [W], of the first token in the text
        window = position // tf.gather(step, words.value_rowids())
        window += tf.gather(tf.cumsum(windows, exclusive=True), words.value_rowids())
        token = tf.gather(ids.row_starts(), window) + 1 + position - tf.gather(begin, window)  # in ascending order
        is_word = tf.scatter_nd(token[:, tf.newaxis], tf.ones_like(token, tf.bool), tf.shape(zeros, token.dtype))
        logits = in_parts(self._encoder.token_logits, batch, self._encoder.outputs, is_word)
        tag_ids = tf.argmax(logits, axis=-1, output_type=tf.int32)
        scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        return words.with_flat_values(tag_ids), words.with_flat_values(scores)

    def _entities(self, tag_ids: tf.RaggedTensor, scores: tf.RaggedTensor) -> _Entities:
        """Returns the entities for class ids and scores [B, (words)]. As in seqeval, an entity may begin with I-."""
        tags, row = tag_ids.flat_values, tag_ids.value_rowids()
        kind, is_inside = tf.gather(self._kind_of_class, tags), tf.gather(self._is_inside, tags)
        follows = tf.concat([[False], row[1:] == row[:-1]], axis=0)[: tf.size(tags)]
        same_kind = tf.concat([[False], kind[1:] == kind[:-1]], axis=0)[: tf.size(tags)]
        after_last = tf.concat([[False], tf.gather(self._is_last, tags)[:-1]], axis=0)[: tf.size(tags)]
        continues = is_inside & follows & same_kind & ~after_last
        first = tf.where((kind > 0) & ~continues)[:, 0]  # [E]
        number = tf.range(tf.size(tags, out_type=tf.int64))
        breaks = tf.concat([tf.boolean_mask(number, ~continues), tf.shape(tags, out_type=tf.int64)], axis=0)
        end = tf.gather(breaks, tf.searchsorted(breaks, first, side="right"))
        first_of_row = tf.gather(tag_ids.row_starts(), tf.gather(row, first))
        counts = tf.math.bincount(
            tf.cast(tf.gather(row, first), tf.int32), minlength=tf.cast(tag_ids.nrows(), tf.int32)
        )

        types = tf.gather(self._kinds, tf.gather(kind, first))
        words = tf.ragged.range(first, end)
        lowest = tf.reduce_min(words.with_flat_values(tf.gather(scores.flat_values, words.flat_values)), axis=1)
        columns = types, lowest, first - first_of_row, end - first_of_row
        return _Entities(*(by_row(values, counts) for values in columns))


def _split_words(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Returns the words [B, (words)] of texts [B], and the byte positions [start, end) of each word.

    Texts are first split into chunks at white space. Punctuation, quotes and brackets at the start or end of a chunk
    are separate words. Inside a chunk, they belong to the word.
    """
    fragments, starts, ends = tf_text.regex_split_with_offsets(texts, f"{_SPACES}|{_EDGE_MARKS}", _EDGE_MARKS)
    row, start, end = fragments.value_rowids(), starts.flat_values, ends.flat_values
    is_mark = tf.strings.regex_full_match(fragments.flat_values, _EDGE_MARKS)
    touches = tf.concat([[False], (row[1:] == row[:-1]) & (start[1:] == end[:-1])], axis=0)[: tf.size(start)]
    number = tf.range(tf.size(start))
    chunk = tf.cumsum(tf.cast(~touches, tf.int32)) - 1
    chunks = tf.reduce_max(tf.concat([chunk, [-1]], axis=0)) + 1
    # The word of a chunk extends from the first to the last fragment that is not a mark.
    first = tf.math.unsorted_segment_min(tf.where(is_mark, number.dtype.max, number), chunk, chunks)
    last = tf.math.unsorted_segment_max(tf.where(is_mark, -1, number), chunk, chunks)
    joins_last = (number > tf.gather(first, chunk)) & (number <= tf.gather(last, chunk))
    begins = tf.where(~joins_last)[:, 0]
    closing = tf.concat([begins[1:], tf.shape(start, out_type=tf.int64)], axis=0)[: tf.size(begins)] - 1
    counts = tf.math.bincount(tf.cast(tf.gather(row, begins), tf.int32), minlength=tf.size(texts))

    starts, ends = by_row(tf.gather(start, begins), counts), by_row(tf.gather(end, closing), counts)
    return _substrings(texts, starts, ends), starts, ends


def _substrings(texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the substrings [start, end) [B, (positions)] of texts [B], for byte positions [B, (positions)].

    Time and memory are proportional to the length of the texts. `tf.strings.substr` would need a copy of the text for
    each substring.
    """
    split = tf.strings.bytes_split(texts)
    first_of_text = tf.gather(split.row_starts(), starts.value_rowids())
    byte_indices = tf.ragged.range(first_of_text + starts.flat_values, first_of_text + ends.flat_values)
    substring_bytes = byte_indices.with_flat_values(tf.gather(split.flat_values, byte_indices.flat_values))
    return starts.with_flat_values(tf.strings.reduce_join(substring_bytes, axis=-1))


class _CharacterCounter:
    """Converts byte positions [B, (positions)] to positions of code points."""

    def __init__(self, texts: tf.Tensor) -> None:
        closed = tf.strings.join([texts, "\n"])  # the end of a text becomes the start of a character
        self._begins = tf.strings.unicode_decode_with_offsets(closed, "UTF-8")[1]

    def __call__(self, positions: tf.RaggedTensor) -> tf.RaggedTensor:
        # The bytes of all texts are numbered consecutively.
        text_end = tf.cumsum(self._begins[:, -1:].flat_values + 1)
        text_start = tf.concat([[0], text_end], axis=0)
        begins = self._begins.flat_values + tf.gather(text_start, self._begins.value_rowids())
        position = positions.flat_values + tf.gather(text_start, positions.value_rowids())
        character = tf.searchsorted(begins, position, out_type=tf.int64)
        return positions.with_flat_values(character - tf.gather(self._begins.row_starts(), positions.value_rowids()))


def _gather_words(values: tf.RaggedTensor, numbers: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the values of selected words [B, (numbers)] from the values of all words [B, (words)]."""
    row_starts = tf.gather(values.row_starts(), numbers.value_rowids())
    return numbers.with_flat_values(tf.gather(values.flat_values, row_starts + numbers.flat_values))


def exportable_tagger(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a tagging run."""
    is_plain = run.settings.get("tag_scheme") == PLAIN
    tags = run.settings.get("tag_classes") or tag_classes(run.labels, is_plain)
    model, _ = run.restored(TokenModel, len(tags))
    served = ServedTagger(run.encoder(model), run.tokenizer, tags, is_plain, run.max_seq_length)
    return run.exportable(served, model, tags)
