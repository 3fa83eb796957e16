"""Baseline for data preparation: the algorithm of the original create_pretraining_data.py, rewritten.

    python -m benchmarks.released_preparation INPUT VOCAB OUTPUT [--dupe_factor=10] [--whole_word] ...

Like the original, it processes tokens as strings, keeps the complete text and all examples in memory, and has a Python
object for every feature. The output is the same as with `--original_order`. The printed CPU seconds do not include the
start of Python and the import of TensorFlow.
"""

import argparse
import collections
import random
import time

import tensorflow as tf

from benchmarks.released_tokenizer import ForgetfulTokenizer


def read_documents(paths, tokenizer, rng):
    """Returns the shuffled documents. A document is a list of sentences, and a sentence is a list of tokens."""
    documents = [[]]
    for path in paths:
        with tf.io.gfile.GFile(path, "rb") as reader:
            while line := reader.readline():
                text = line.replace(b"\r", b"").decode("utf-8").strip()
                if not text:
                    documents.append([])
                tokens = tokenizer.tokenize(text)
                if tokens:
                    documents[-1].append(tokens)
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    return documents


def examples_of_document(documents, index, vocab_words, options, rng):
    """Returns the examples of one pass over a document."""
    document = documents[index]
    room = options.max_seq_length - 3
    target = room
    if rng.random() < options.short_seq_prob:
        target = rng.randint(2, room)
    examples, chunk, chunk_tokens, i = [], [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        chunk_tokens += len(document[i])
        if i == len(document) - 1 or chunk_tokens >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            tokens_a = []
            for sentence in chunk[:cut]:
                tokens_a.extend(sentence)
            tokens_b = []
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                target_b = target - len(tokens_a)
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    tokens_b.extend(sentence)
                    if len(tokens_b) >= target_b:
                        break
                i -= len(chunk) - cut
            else:
                for sentence in chunk[cut:]:
                    tokens_b.extend(sentence)
            shorten(tokens_a, tokens_b, room, rng)
            tokens, segment_ids = ["[CLS]"], [0]
            for token in tokens_a:
                tokens.append(token)
                segment_ids.append(0)
            tokens.append("[SEP]")
            segment_ids.append(0)
            for token in tokens_b:
                tokens.append(token)
                segment_ids.append(1)
            tokens.append("[SEP]")
            segment_ids.append(1)
            examples.append((*mask(tokens, vocab_words, options, rng), segment_ids, is_random_next))
            chunk, chunk_tokens = [], 0
        i += 1
    return examples


def shorten(tokens_a, tokens_b, room, rng):
    """Removes tokens from the start or the end of the longer segment until both fit."""
    while len(tokens_a) + len(tokens_b) > room:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def mask(tokens, vocab_words, options, rng):
    """Returns the masked tokens, the positions, and the labels."""
    candidates = []
    for i, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if options.whole_word and candidates and token.startswith("##"):
            candidates[-1].append(i)
        else:
            candidates.append([i])
    rng.shuffle(candidates)
    output = list(tokens)
    limit = min(options.max_predictions_per_seq, max(1, round(len(tokens) * options.masked_lm_prob)))
    predictions = []
    for group in candidates:
        if len(predictions) >= limit:
            break
        if len(predictions) + len(group) > limit:
            continue
        for position in group:
            if rng.random() < 0.8:
                piece = "[MASK]"
            elif rng.random() < 0.5:
                piece = tokens[position]
            else:
                piece = vocab_words[rng.randint(0, len(vocab_words) - 1)]
            output[position] = piece
            predictions.append((position, tokens[position]))
    predictions.sort()
    return output, [position for position, _ in predictions], [label for _, label in predictions]


def write_examples(examples, tokenizer, options):
    """Writes the examples to the files in turn."""
    writers = [tf.io.TFRecordWriter(path) for path in options.output.split(",")]
    for number, (tokens, positions, labels, segment_ids, is_random_next) in enumerate(examples):
        features = collections.OrderedDict()
        missing = [0] * (options.max_seq_length - len(tokens))
        unused = options.max_predictions_per_seq - len(positions)
        features["input_ids"] = integers(tokenizer.convert_tokens_to_ids(tokens) + missing)
        features["input_mask"] = integers([1] * len(tokens) + missing)
        features["segment_ids"] = integers(segment_ids + missing)
        features["masked_lm_positions"] = integers(positions + [0] * unused)
        features["masked_lm_ids"] = integers(tokenizer.convert_tokens_to_ids(labels) + [0] * unused)
        features["masked_lm_weights"] = floats([1.0] * len(positions) + [0.0] * unused)
        features["next_sentence_labels"] = integers([1 if is_random_next else 0])
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writers[number % len(writers)].write(example.SerializeToString(deterministic=True))
    for writer in writers:
        writer.close()


def integers(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=list(values)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("vocab")
    parser.add_argument("output")
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--whole_word", action="store_true")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--max_predictions_per_seq", type=int, default=20)
    parser.add_argument("--random_seed", type=int, default=12345)
    parser.add_argument("--dupe_factor", type=int, default=10)
    parser.add_argument("--masked_lm_prob", type=float, default=0.15)
    parser.add_argument("--short_seq_prob", type=float, default=0.1)
    options = parser.parse_args()

    start = time.process_time()
    rng = random.Random(options.random_seed)
    tokenizer = ForgetfulTokenizer(options.vocab, not options.cased)
    documents = read_documents(options.input.split(","), tokenizer, rng)
    vocab_words = list(tokenizer.vocab)
    examples = []
    for _ in range(options.dupe_factor):
        for index in range(len(documents)):
            examples.extend(examples_of_document(documents, index, vocab_words, options, rng))
    rng.shuffle(examples)
    write_examples(examples, tokenizer, options)
    print(f"{time.process_time() - start:.3f}")


if __name__ == "__main__":
    main()
