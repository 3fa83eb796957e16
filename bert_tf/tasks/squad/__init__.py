"""SQuAD 1.1 and 2.0. The original functions are in `bert_tf.tasks.original_api`.

From questions to scores: `read_squad` -> examples -> `featurize` -> windows -> the model -> logits -> `decode` ->
answers -> `evaluate`.

    questions        questions and paragraphs from SQuAD files
    rules            the settings, and the rules for windows and answers, shared by arrays and the served graph
    windows          questions and paragraphs -> windows, as arrays
    decoding         logits -> ranked answers, as written in the paragraph
    predictions      the answers to the questions of a file, and prediction files
    evaluation       scores, and the no-answer threshold
    answerer         one or several models in memory that answer questions
    squad_task       the task for fine-tuning, and the output files
    typed_questions  answers to typed questions
"""

from typing import TYPE_CHECKING

from bert_tf.runtime import lazy_imports

if TYPE_CHECKING:
    from bert_tf.tasks.squad.decoding import average_distributions as average_distributions, decode as decode
    from bert_tf.tasks.squad.evaluation import (
        evaluate as evaluate,
        evaluate_v1 as evaluate_v1,
        evaluate_v2 as evaluate_v2,
        tune_null_threshold as tune_null_threshold,
    )
    from bert_tf.tasks.squad.predictions import (
        SquadPredictions as SquadPredictions,
        merge_n_best as merge_n_best,
        read_answers as read_answers,
        read_n_best as read_n_best,
    )
    from bert_tf.tasks.squad.questions import (
        SquadData as SquadData,
        SquadExample as SquadExample,
        make_example as make_example,
        read_squad as read_squad,
    )
    from bert_tf.tasks.squad.rules import SquadConfig as SquadConfig
    from bert_tf.tasks.squad.windows import SquadWindows as SquadWindows, featurize as featurize
else:
    __getattr__, __dir__, __all__ = lazy_imports.when_used(__name__)
