"""Paths of the reference data, and functions that several test modules use.

The golden data are outputs of the original code. `tests/golden` contains a small part of the golden data. A larger set
with the same layout replaces it if the environment variable BERT_GOLDEN is the path of the larger set, or if the larger
set is next to the checkout.
"""

import contextlib
import gc
import gzip
import json
import os
import pathlib

import pytest

from bert_tf.runtime import lazy_imports

# Sets the same options of TensorFlow as the programs, because tests compare numbers of both bitwise.
lazy_imports.prepare_tensorflow()
ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


# The slowest modules run first, so that no process is still busy with them when the other processes have finished.
_LONG = ("test_documentation.py", "test_multi_worker.py", "test_tpu.py", "test_run_pretraining.py", "test_training.py")


def pytest_configure(config):
    """Prepares TensorFlow. With -n, the first process does not run tests; it only starts the test processes."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from tests import command_server

    command_server.shuffle_few_records()
    # The CPU becomes two devices for the tests of distribution; all other tests use only the first.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def pytest_collection_finish():
    """Excludes the imported modules and the tests from garbage collection."""
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Sorts the tests. The tests of a module stay together."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))


def _golden_directory() -> pathlib.Path:
    if "BERT_GOLDEN" in os.environ:
        return pathlib.Path(os.environ["BERT_GOLDEN"])
    beside = SHARED / "golden"
    return beside if beside.is_dir() else ROOT / "tests" / "golden"


GOLDEN = _golden_directory()


def golden_path(name: str) -> pathlib.Path:
    """Returns the path of golden data. Skips the test if the small part of the golden data doesn't contain the path."""
    path = GOLDEN / name
    if not path.exists():
        pytest.skip(f"{GOLDEN} has no {name}")
    return path


def golden_names(pattern: str) -> list:
    """Returns the directories that match `*` in a path of the golden data."""
    return sorted(path.relative_to(GOLDEN).parts[pattern.split("/").index("*")] for path in GOLDEN.glob(pattern))


def _open_golden(name: str):
    """Opens a text file of the golden data. In the small part, some of the larger files are gzipped."""
    packed = golden_path(name if name.endswith(".gz") or (GOLDEN / name).exists() else name + ".gz")
    return gzip.open(packed, "rt", encoding="utf-8") if packed.suffix == ".gz" else packed.open(encoding="utf-8")


def golden_json(name: str):
    """Returns the content of a JSON file of the golden data, gzipped or not."""
    with _open_golden(name) as reader:
        return json.load(reader)


def golden_lines(name: str) -> list:
    """Returns the content of a JSON-lines file of the golden data, gzipped or not."""
    with _open_golden(name) as reader:
        return [json.loads(line) for line in reader]


def int32(arrays) -> dict:
    """Converts int64 arrays to int32, as models require."""
    import numpy as np

    return {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in arrays.items()}


def data_path(name: str) -> pathlib.Path:
    """Returns a path in the real data sets next to the checkout. Skips the test if the path doesn't exist."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"the real data sets are not beside this checkout ({path})")
    return path


@contextlib.contextmanager
def eagerly():
    """Runs functions and started programs without graphs, because a few steps take less time than building a graph."""
    import tensorflow as tf

    os.environ["RUN_EAGERLY"] = "1"  # for the started programs
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
        del os.environ["RUN_EAGERLY"]


@pytest.fixture(autouse=True)
def _mode(request, monkeypatch):
    """Applies the markers. `graph` and `kernels` mark exceptions in a module marked `eager` and `plain`."""
    if request.node.get_closest_marker("plain") and not request.node.get_closest_marker("kernels"):
        from bert_tf.model import cpu_kernels

        monkeypatch.setenv("PLAIN_KERNELS", "1")  # for the started programs
        monkeypatch.setattr(cpu_kernels, "apply_to", lambda x: False)
    is_eager = request.node.get_closest_marker("eager") and not request.node.get_closest_marker("graph")
    with eagerly() if is_eager else contextlib.nullcontext():
        yield


@pytest.fixture
def write(tmp_path):
    """Writes a text file and returns its path."""

    def write_file(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write_file


@pytest.fixture
def tokenizer(write):
    """Returns a tokenizer with the vocabulary `programs.PIECES`."""
    from bert_tf.text import FullTokenizer
    from tests.programs import PIECES

    return FullTokenizer(write("vocab.txt", "\n".join(PIECES) + "\n"), do_lower_case=True)


_KINDS = ("SpecialToken", "Sequence", "SpecialToken")


def tokenizer_json(tokens, model_changes=(), **changes):
    """Returns the content of Hugging Face's `tokenizer.json` for an uncased tokenizer; `changes` replace its parts."""
    ids = {token: number for number, token in enumerate(tokens)}
    single = [{kind: {"id": name, "type_id": 0}} for kind, name in zip(_KINDS, ("[CLS]", "A", "[SEP]"), strict=True)]
    pair = single + [{kind: {"id": name, "type_id": 1}} for kind, name in zip(_KINDS[1:], ("B", "[SEP]"), strict=True)]
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    parts = {
        "model": {"type": "WordPiece", "vocab": ids} | dict(model_changes),
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template,
    }
    return parts | changes


def tiny_config(**changes):
    """Returns a config with small sizes. Most of the sizes are different."""
    from bert_tf.config import BertConfig

    sizes = {
        "vocab_size": 41,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
    }
    return BertConfig(**(sizes | changes))


def without_dropout(config):
    """Returns the same config without dropout."""

    return config.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def assert_close(actual, expected, atol, name=""):
    """Checks that two arrays are equal within an absolute tolerance."""
    import numpy as np

    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=atol, err_msg=name)


def assert_refused(match, function, *arguments, **options):
    """Checks that a call raises an InputError whose message matches a regular expression."""
    from bert_tf.runtime.errors import InputError

    with pytest.raises(InputError, match=match):
        function(*arguments, **options)


def is_compiled(function, *args):
    """Returns True if the graph of a tf.function contains parts that XLA compiles."""
    graph = function.get_concrete_function(*args).graph.as_graph_def()
    return any(f.attr["_XlaMustCompile"].b for f in graph.library.function)


def needed_operations(function, *args):
    """Returns the types of the operations in a tf.function's graph, after inlining calls and removing unused parts."""
    import tensorflow as tf
    from tensorflow.python.grappler import tf_optimizer

    graph = function.get_concrete_function(*args).graph
    meta_graph = tf.compat.v1.train.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(tensor.name for tensor in graph.outputs)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.optimizers.extend(["function", "pruning"])
    return [node.op for node in tf_optimizer.OptimizeGraph(config, meta_graph).node]


def with_large_head(model):
    """Makes the weights of a model's head large, so that predictions differ clearly. Returns the model."""
    weights = model.head.output_weights
    weights.assign(35.0 * weights)
    return model


def trainer_of(model, config, strategy, *options):
    """Returns the trainer of a model, in the strategy's scope."""
    from bert_tf.optimization import build_optimizer
    from bert_tf.training.step.trainer import Trainer

    with strategy.scope():
        return Trainer(model, build_optimizer(config.optimizer, model.trained_variables), config, strategy, *options)


def train_steps(trainer, batches, count):
    """Runs some training steps and returns the mean metrics."""
    assert sum(trainer.steps(batches, count)) == count
    assert trainer.nonfinite.take(str) == []
    return trainer.take_means()


def weights_of(model):
    """Returns the variables of a layer or model that a checkpoint contains."""
    import keras

    return model.weights if isinstance(model, keras.layers.Layer) else model.variables


def restored(model, checkpoint, **options):
    """Restores a checkpoint into a model and returns the model."""
    from bert_tf import checkpoints

    source = checkpoints.open_checkpoint(str(checkpoint))
    checkpoints.restore(checkpoints.named_variables(weights_of(model)), source, **options)
    return model


def tensors_of(checkpoint):
    """Returns the tensors of a checkpoint by name."""
    from bert_tf import checkpoints

    source = checkpoints.open_checkpoint(str(checkpoint))
    return {name: source.read(name) for name in source.shapes}


def with_gradients(function, inputs, upstream=None):
    """Returns the value of a function and its gradients with respect to the inputs."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    return value, *tape.gradient(value, inputs, upstream)


def loss_and_gradients(model, batch, seed=(1, 2)):
    """Returns the loss of a batch, the sums for the metrics, and the gradients of the trained variables."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss, sums = model.loss(batch, model.totals(batch), seed and tf.constant(seed))
    gradients = tape.gradient(loss, [variable.value for variable in model.trained_variables])
    return loss, sums, [tf.convert_to_tensor(gradient) for gradient in gradients]
