"""SQuAD 1.1 and 2.0. The original functions are in `bert_tf.tasks.original_api`.

From questions to scores: `read_squad` -> examples -> `featurize` -> windows -> the model -> logits -> `decode` ->
answers -> `evaluate`.

    questions        questions and paragraphs from SQuAD files
    rules            the settings, and the rules of windows and answers, shared by arrays and the served graph
    windows          questions and paragraphs -> windows, as arrays
    decoding         logits -> ranked answers, as written in the paragraph
    predictions      the answers to a file's questions, and the files of answers
    graph_predictor   windows and answers inside a TensorFlow graph, for the SavedModel
    evaluation       scores, and the no-answer threshold
    squad_task       the task of the fine-tuning loop, the models that answer, and the files of answers
    typed_questions  answers to typed questions
"""

from bert_tf.runtime import lazy_imports

__getattr__, __dir__, __all__ = lazy_imports.when_used(
    __name__,
    {
        "bert_tf.tasks.squad.decoding": ["average_distributions", "decode"],
        "bert_tf.tasks.squad.evaluation": ["evaluate", "evaluate_v1", "evaluate_v2", "tune_null_threshold"],
        "bert_tf.tasks.squad.questions": ["SquadData", "SquadExample", "make_example", "read_squad"],
        "bert_tf.tasks.squad.predictions": ["SquadPredictions", "merge_n_best", "read_answers", "read_n_best"],
        "bert_tf.tasks.squad.rules": ["SquadConfig"],
        "bert_tf.tasks.squad.windows": ["SquadWindows", "featurize"],
    },
)
