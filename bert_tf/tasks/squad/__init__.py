"""SQuAD 1.1 and 2.0: the release's names, and the functions of the program.

From questions to scores: `read_squad` -> examples -> `featurize` -> windows -> the model -> logits -> `decode` ->
answers -> `evaluate`.

    examples       questions and paragraphs from SQuAD files
    rules          the settings, and the rules of windows and answers that arrays and the served graph share
    windows        questions and paragraphs -> windows, as arrays
    decoding       logits -> ranked answers, as arrays
    realignment    predicted pieces -> the text as written
    predictions    the answers to a file's questions, and the files of answers
    released       the release's functions and classes, as adapters of `windows` and `decoding`
    served         windows and answers inside a TensorFlow graph, for the SavedModel
    evaluation     scores, and the threshold for no answer
    answerer       the loaded model or models that answer
    task           the task of the fine-tuning loop
    run            the steps of run_squad.py
"""

from bert_tf.tasks.squad.decoding import average_distributions, decode
from bert_tf.tasks.squad.evaluation import (
    evaluate,
    evaluate_v1,
    evaluate_v2,
    read_null_threshold,
    tune_null_threshold,
    write_null_threshold,
)
from bert_tf.tasks.squad.examples import (
    SquadData,
    SquadExample,
    load_articles,
    make_example,
    read_squad,
    read_squad_examples,
)
from bert_tf.tasks.squad.predictions import (
    SquadPredictions,
    merge_n_best,
    read_answers,
    read_n_best,
    report_differences,
)
from bert_tf.tasks.squad.realignment import get_final_text
from bert_tf.tasks.squad.released import (
    FeatureWriter,
    InputFeatures,
    RawResult,
    convert_examples_to_features,
    write_predictions,
)
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.windows import SquadWindows, featurize

__all__ = [
    "FeatureWriter",
    "InputFeatures",
    "RawResult",
    "SquadConfig",
    "SquadData",
    "SquadExample",
    "SquadPredictions",
    "SquadWindows",
    "average_distributions",
    "convert_examples_to_features",
    "decode",
    "evaluate",
    "evaluate_v1",
    "evaluate_v2",
    "featurize",
    "get_final_text",
    "load_articles",
    "make_example",
    "merge_n_best",
    "read_answers",
    "read_n_best",
    "read_null_threshold",
    "read_squad",
    "read_squad_examples",
    "report_differences",
    "tune_null_threshold",
    "write_null_threshold",
    "write_predictions",
]
