"""Models converted to and from Hugging Face's `transformers` give the same logits and the same tokens.

Needs the extra "transformers"; `make test-transformers` installs it and runs these tests.
"""

import json

import numpy as np
import pytest

from bert_tf import checkpoints, convert_checkpoint
from bert_tf.checkpoints import class_names, pretrained, saver
from bert_tf.finetuning.models import ClassifierModel, SpanModel, TokenModel
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.tasks.hf_names import CHOICE, SEQUENCE, SPAN, TOKENS
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.conftest import assert_close, tiny_config

torch = pytest.importorskip("torch", reason="needs the extra 'transformers'")
transformers = pytest.importorskip("transformers", minversion="5", reason="needs the extra 'transformers'")

PIECES = [*SPECIAL_TOKENS, *"abcéeüu中文i!σ", *(f"##{char}" for char in "ébeu中文"), "i\u0307", "a\u0300"]
CONFIG = tiny_config(vocab_size=len(PIECES), hidden_act="gelu_erf")
IDS = np.array([[2, 5, 6, 3, 7, 3], [2, 7, 3, 8, 3, 0]], np.int32)
BATCH = {"input_ids": IDS, "input_mask": np.minimum(IDS, 1), "segment_ids": np.array([[0, 0, 0, 0, 1, 1]] * 2)}
CLASSES = ("yes", "no", "maybe")
TYPES = ("LOC", "PER")


def masked_lm_logits(model):
    positions = np.tile(np.arange(IDS.shape[1]), (len(IDS), 1))
    return model.masked_lm(model.encoder(*BATCH.values()), positions, model.encoder.embedding_table)


def span_logits(model):
    return np.stack(model.logits(BATCH), axis=-1)


def logits(model):
    return model.logits(BATCH)


# Our model, our logits, the settings in run.json; the class in transformers, and the logits of that class.
HEADS = {
    "classifier": (
        lambda: ClassifierModel(CONFIG, 3, classes=CLASSES),
        logits,
        {"task": "text", "problem": "classification", "labels": list(CLASSES)},
        SEQUENCE,
    ),
    "several labels": (
        lambda: ClassifierModel(CONFIG, 3, "multi_label", classes=CLASSES),
        logits,
        {"task": "text", "problem": "multi_label", "labels": list(CLASSES)},
        SEQUENCE,
    ),
    "regression": (
        lambda: ClassifierModel(CONFIG, 1, "regression"),
        logits,
        {"task": "sts-b", "labels": None},
        SEQUENCE,
    ),
    "tagger": (
        lambda: TokenModel(CONFIG, 5, classes=class_names.tag_classes(TYPES)),
        logits,
        {"task": "ner", "labels": list(TYPES)},
        TOKENS,
    ),
    "chooser": (lambda: ClassifierModel(CONFIG, 1, choices=2), logits, {"task": "swag", "labels": ["0", "1"]}, CHOICE),
    "answerer": (lambda: SpanModel(CONFIG), span_logits, {"task": "squad"}, SPAN),
    "pre-training": (lambda: PretrainingModel(CONFIG), masked_lm_logits, {}, "BertForPreTraining"),
    "masked LM": (lambda: PretrainingModel(CONFIG, "mlm"), masked_lm_logits, {}, "BertForMaskedLM"),
}
heads = pytest.mark.parametrize("head", HEADS)


def randomize(model):
    """Sets every variable to values so large that differences are visible."""
    rng = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(variable.numpy() + 0.2 * rng.standard_normal(variable.shape))
    return model


def save_run(directory, model, settings):
    directory.mkdir()
    (directory / "bert_config.json").write_text(CONFIG.to_json_string())
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "run.json").write_text(json.dumps({"resume_settings": {"do_lower_case": True} | settings}))
    tensors = checkpoints.named_variables(model.variables) | {"global_step": np.int64(1)}
    saver.CheckpointSaver(str(directory), keep_checkpoint_max=1).save(1, tensors)


def their_logits(model):
    inputs = dict(zip(("input_ids", "attention_mask", "token_type_ids"), BATCH.values(), strict=True))
    shape = (1, *IDS.shape) if type(model).__name__ == "BertForMultipleChoice" else IDS.shape
    with torch.no_grad():
        output = model.eval()(**{name: torch.tensor(x, dtype=torch.long).reshape(shape) for name, x in inputs.items()})
    if hasattr(output, "start_logits"):
        return torch.stack([output.start_logits, output.end_logits], dim=-1).numpy()
    return (output.logits if hasattr(output, "logits") else output.prediction_logits).numpy()


@heads
def test_our_models_are_what_they_are_in_transformers(tmp_path, head):
    build, our_logits, settings, architecture = HEADS[head]
    model = randomize(build())
    save_run(tmp_path / "run", model, settings)
    convert_checkpoint.convert(str(tmp_path / "run"), str(tmp_path / "hf"), "hf")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.architectures == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    # Models without a pooler don't load it. The files keep the pooler for other models.
    assert all(name.startswith("bert.pooler.") for name in report["unexpected_keys"])
    assert_close(their_logits(theirs), our_logits(model), 1e-4)
    if settings.get("labels") and architecture != "BertForMultipleChoice":
        assert tuple(config.id2label[number] for number in range(config.num_labels)) == model.classes
        assert {config.label2id[name]: name for name in model.classes} == config.id2label
    problems = {"classifier": "single_label", "several labels": "multi_label"}
    expected = f"{problems[head]}_classification" if head in problems else {"regression": head}.get(head)
    assert config.problem_type == expected


@heads
def test_their_models_are_the_same_here(tmp_path, head):
    build, our_logits, _, architecture = HEADS[head]
    model = randomize(build())
    # The classes in transformers have another order.
    names = list(model.classes or ("LABEL_0", "LABEL_1")[: 1 + (head == "answerer")])[::-1]
    config = transformers.BertConfig(
        **{name: value for name, value in CONFIG.to_dict().items() if name != "hidden_act"},
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    torch.manual_seed(1)
    theirs = getattr(transformers, architecture)(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    source, variables = checkpoints.open_checkpoint(str(tmp_path)), checkpoints.named_variables(model.variables)
    # In transformers, models for tokens have no pooler, and the logits do not depend on the pooler.
    pooler = "" if theirs.bert.pooler else "bert/pooler/.*"
    checkpoints.restore(variables, class_names.with_classes(source, variables, model.classes), may_be_new=pooler)
    expected = their_logits(theirs)
    assert_close(our_logits(model), expected[..., ::-1] if model.classes else expected, 1e-4)


RULES = [
    {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    for lower in (True, False)
    for strip in (None, True, False)
    for chinese in (True, False)
]
TEXTS = ["Éé bÉ! Ü uÜ", "中文a中文 a", "e\u0301 A\u0300b İ B", "bee\u200bb a\u00a0b ΣΑΣ"]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_tokenizers_are_the_same_in_both_directions(tmp_path, rules):
    run, converted, saved = (str(tmp_path / name) for name in ("run", "converted", "saved"))
    save_run(tmp_path / "run", SpanModel(CONFIG), {"task": "squad", **rules})
    # Only a vocabulary with capital letters is recognised as cased.
    pieces = PIECES if rules["do_lower_case"] else [*PIECES[:-2], "B", "##B"]
    (tmp_path / "run" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "run" / "tokenizer_config.json").write_text(json.dumps(rules))
    ours = pretrained.find_model(run, "run")[-1]
    convert_checkpoint.convert(run, converted, "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(converted)
    assert theirs.model_max_length == CONFIG.max_position_embeddings
    expected = [theirs(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert [ours.encode(text) for text in TEXTS] == expected
    # The newest versions of transformers write tokenizer.json but not vocab.txt.
    theirs.save_pretrained(saved)
    read = Tokenizer.checked(pretrained.find_vocabulary(saved), rules["do_lower_case"])
    assert [read.encode(text) for text in TEXTS] == expected
