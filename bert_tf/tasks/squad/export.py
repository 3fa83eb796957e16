"""What is exported of a model that answers questions."""

from bert_tf.finetuning.models import SpanModel
from bert_tf.serving.finished_run import Exportable, FinishedRun, plain_logits
from bert_tf.tasks.squad.answerer import AnswerPlan, choose_null_threshold, describe_model
from bert_tf.tasks.squad.served import AnswerRules, ServedAnswerer


def exportable(run: FinishedRun) -> Exportable:
    """What is exported of a run that learned to answer; it answers as run_squad.py does with --answer_text=offsets."""
    model = SpanModel(run.config, **run.encoder_options)
    step = run.restore(model)
    given = {"max_seq_length": run.max_seq_length, **run.export_config.answers}
    for name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
        value = run.settings.get(name, run.flags.get(name))
        if value is not None:
            given.setdefault(name, value)
    if run.settings["version_2_with_negative"]:
        plan = AnswerPlan(null_score_diff_threshold=run.export_config.null_score_diff_threshold)
        given["null_score_diff_threshold"] = choose_null_threshold(plan, [run.folder], describe_model(step, model))
    served = ServedAnswerer(run.encoder(model), model.head, run.tokenizer, AnswerRules(**given))
    return Exportable(served, plain_logits(model))
