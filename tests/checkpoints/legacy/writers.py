"""Writes tiny models in the formats of other libraries, from arrays with original names."""

import json
import pickle
import re
import struct
import zipfile

import h5py
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import variable_names
from bert_tf.encoder import BertEncoder
from bert_tf.model.heads import MaskedLMHead
from tests.conftest import tiny_config

v1 = tf.compat.v1
STORAGES = {"f": "FloatStorage", "e": "HalfStorage", "l": "LongStorage"}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##s", "!"]
CONFIG = tiny_config(vocab_size=len(PIECES), hidden_act="gelu_erf")
IDS = np.array([[2, 5, 6, 3, 7, 3], [2, 7, 3, 9, 3, 0]], np.int32)
INPUTS = (IDS, np.minimum(IDS, 1), np.array([[0, 0, 0, 0, 1, 1]] * 2, np.int32))
OUTPUT_LAYERS = {
    "classifier": ("", 4),
    "tagger": ("", 5),
    "answerer": ("cls/squad/", 2),
    "next sentence": ("cls/seq_relationship/", 2),
}


def arrays(config=CONFIG, heads=(), seed=0):
    """Returns random weights of an encoder and of output layers, by their original names."""
    models = [BertEncoder(config, seed=0), *([MaskedLMHead(config)] if "masked LM" in heads else [])]
    shapes = {variable.path: tuple(variable.shape) for model in models for variable in model.weights}
    for head in {*heads} - {"masked LM"}:
        place, rows = OUTPUT_LAYERS[head]
        shapes |= {f"{place}output_weights": (rows, config.hidden_size), f"{place}output_bias": (rows,)}
    random = np.random.default_rng(seed)
    means = {name: float(name.endswith("gamma")) for name in shapes}
    return {name: random.normal(means[name], 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write_files(directory, config=CONFIG, architecture="BertModel", **settings):
    """Writes Hugging Face's config.json, vocab.txt and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_hf_dict(architecture) | settings))
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(key, shape, strides=None, size=None, offset=0, storage="FloatStorage"):
    """Returns the operations of a pickle that create a tensor."""
    strides = strides or [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    size = int(np.prod(shape)) if size is None else size
    stored = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu") + number(size) + b"tQ"
    parts = stored + number(offset) + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + parts + b"tR"


def write_torch(path, items, data, pickled=None, compression=zipfile.ZIP_STORED):
    """Writes a file like torch.save.

    Args:
      path: the file.
      items: maps names to operations that create the values.
      data: maps the keys of storages to bytes.
      pickled: the pickle; by default a dictionary with the items and a state, as in transformers 4.
      compression: how the data is compressed.
    """
    if pickled is None:
        pairs = b"".join(text(name) + value for name, value in items.items())
        state = b"}" + text("_metadata") + b"ccollections\nOrderedDict\n)Rsb"
        pickled = b"\x80\x02ccollections\nOrderedDict\n)R(" + pairs + b"u" + state + b"."
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, content in data.items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", "3\n")


def hf_arrays(weights):
    return {
        variable_names.released_to_hf(name): array.T if variable_names.hf_is_transposed(name) else array
        for name, array in weights.items()
    }


def write_bin(path, weights):
    """Writes pytorch_model.bin. Matrices are stored in Fortran order, which has unusual strides."""
    stored = hf_arrays(weights)
    items, data = {}, {}
    for key, (name, array) in enumerate(stored.items()):
        strides = [stride // 4 for stride in array.T.copy().T.strides]
        items[name] = tensor(str(key), array.shape, strides)
        data[str(key)] = array.T.tobytes()
    write_torch(path, items, data)


def write_older_bin(path, stored, pickled=None):
    """Writes a file like torch.save before version 1.6, on a GPU. Arrays that are the same object share a storage."""
    data = {str(id(array)): array for array in stored.values()}
    items = [
        text(name) + tensor(str(id(array)), array.shape, storage=STORAGES[array.dtype.char]).replace(b"tQ", b"NtQ", 1)
        for name, array in stored.items()
    ]
    content = b"\x80\x02ccollections\nOrderedDict\n)R(" + b"".join(items).replace(text("cpu"), text("cuda:0")) + b"u."
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, system)]
    data_of = b"".join(struct.pack("<q", array.size) + array.tobytes() for array in data.values())
    path.write_bytes(b"".join([*head, pickled or content, pickle.dumps([*data], 2), data_of]))


# --- transformers' Keras 2 models -------------------------------------------------------------------------------------

_H5_HEADS = {
    "cls/predictions/output_bias": "mlm___cls/predictions/bias",
    "cls/seq_relationship/output_weights": "nsp___cls/seq_relationship/kernel",
    "cls/seq_relationship/output_bias": "nsp___cls/seq_relationship/bias",
    "cls/squad/output_weights": "qa_outputs/kernel",
    "cls/squad/output_bias": "qa_outputs/bias",
    "output_weights": "classifier/kernel",
    "output_bias": "classifier/bias",
}


def h5_name(name):
    """Returns the name in a TFBert model, without the prefix of the model."""
    others = name.replace("layer_", "layer_._").replace("cls/predictions/tr", "mlm___cls/predictions/tr")
    name = _H5_HEADS.get(name, others)
    if name.endswith("_embeddings"):
        name += "/weight" if "word" in name else "/embeddings"
    return f"{name}:0"


def keras_array(released, array):
    return array.T if released.endswith("output_weights") else array


def write_h5(path, weights, model="tf_bert_model/", attributes=()):
    with h5py.File(path, "w") as file:
        for released, array in weights.items():
            name = h5_name(released)
            file[f"{name.partition('/')[0]}/{model}{name}" if model else name] = keras_array(released, array)
        for name, value in dict(attributes).items():
            file.attrs[name] = value


# --- SavedModels ------------------------------------------------------------------------------------------------------


def garden_name(released, head="sentence_prediction/logits"):
    """Returns the name of a variable in Model Garden."""
    parts = {f"attention/self/{part}": f"self_attention/{part}" for part in ("query", "key", "value")} | {
        "attention/output/dense": "self_attention/attention_output",
        "attention/output/LayerNorm": "self_attention_layer_norm",
        "intermediate/dense": "intermediate",
        "output/dense": "output",
        "output/LayerNorm": "output_layer_norm",
    }
    name = {
        "bert/embeddings/word_embeddings": "word_embeddings/embeddings",
        "bert/embeddings/position_embeddings": "position_embedding/embeddings",
        "bert/embeddings/token_type_embeddings": "type_embeddings/embeddings",
        "cls/predictions/output_bias": "cls/predictions/output_bias/bias",
    }.get(released, released)
    if block := re.fullmatch(r"bert/encoder/(layer_\d+)/(.+)/(\w+)", name):
        return f"transformer/{block.group(1)}/{parts[block.group(2)]}/{block.group(3)}"
    name = name.replace("bert/embeddings/LayerNorm", "embeddings/layer_norm")
    name = name.replace("bert/pooler/dense", "pooler_transform")
    return re.sub(
        "^(cls/squad/)?output_(weights|bias)$", lambda m: f"{head}/{'bias' if m[2] == 'bias' else 'kernel'}", name
    )


def garden_array(released, array, heads=CONFIG.num_attention_heads):
    width = len(array) // heads if array.ndim == 1 else 0
    if re.search(r"attention/self/\w+/bias$", released):
        return array.reshape(heads, width)
    if re.search(r"attention/self/\w+/kernel$", released):
        return array.reshape(len(array), heads, -1)
    if released.endswith("attention/output/dense/kernel"):
        return array.reshape(heads, -1, array.shape[-1])
    return keras_array(released, array)


def encode(get, ids, mask, segments, config=CONFIG):
    """Computes the original encoder in plain TensorFlow. `get` returns a variable by its name."""

    def dense(x, name):
        return tf.matmul(x, get(f"{name}/kernel")) + get(f"{name}/bias")

    def norm(x, name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        beta, gamma = get(f"{name}/LayerNorm/beta"), get(f"{name}/LayerNorm/gamma")
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12, name=f"{name}/LayerNorm/batchnorm")

    batch, length = tf.shape(ids)[0], tf.shape(ids)[1]
    size = config.hidden_size // config.num_attention_heads
    embedded = [get(f"bert/embeddings/{kind}_embeddings") for kind in ("word", "token_type", "position")]
    x = tf.gather(embedded[0], ids) + tf.gather(embedded[1], segments) + embedded[2][:length]
    x = norm(x, "bert/embeddings")
    adder = (1.0 - tf.cast(mask, tf.float32))[:, None, None, :] * -10000.0
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        split = []
        for part, number in (("query", ""), ("key", "_1"), ("value", "_2")):
            name = f"{layer}/attention/self/Reshape{number}/shape"
            sizes = tf.constant(config.num_attention_heads, name=f"{name}/2"), tf.constant(size, name=f"{name}/3")
            heads = tf.reshape(dense(x, f"{layer}/attention/self/{part}"), tf.stack([batch, length, *sizes]))
            split.append(tf.transpose(heads, [0, 2, 1, 3]))
        query, key, value = split
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / size**0.5 + adder)
        context = tf.reshape(tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3]), [batch, length, config.hidden_size])
        x = norm(dense(context, f"{layer}/attention/output/dense") + x, f"{layer}/attention/output")
        inner = dense(x, f"{layer}/intermediate/dense")
        inner = tf.nn.gelu(inner, approximate=config.hidden_act == "gelu")
        x = norm(dense(inner, f"{layer}/output/dense") + x, f"{layer}/output")
    return x, tf.tanh(dense(x[:, 0], "bert/pooler/dense"))


class Garden(tf.Module):
    """A model with the variables of Model Garden, under Model Garden's names."""

    def __init__(self, weights, config=CONFIG, head="sentence_prediction/logits", prefix="bert_encoder_v2/"):
        super().__init__()
        self.config = config
        self.kept = {}
        for released, array in weights.items():
            name = garden_name(released, head)
            name = name if name.startswith(head) else prefix + name
            self.kept[released] = tf.Variable(garden_array(released, array, config.num_attention_heads), name=name)
        self.shapes = {released: array.shape for released, array in weights.items()}
        self.variables_in_order = list(self.kept.values())
        self.slots = tf.Variable(np.zeros(3, np.float32), name="Adam/m/word_embeddings/embeddings", trainable=False)

    def __call__(self, ids, mask, segments):
        variables = {name: tf.reshape(kept, self.shapes[name]) for name, kept in self.kept.items()}
        states, pooled = encode(variables.get, ids, mask, segments, self.config)
        outputs = {"sequence_output": states, "pooled_output": pooled}
        if "output_weights" in self.kept:
            outputs |= {"logits": tf.matmul(pooled, self.kept["output_weights"]) + self.kept["output_bias"]}
        if "cls/squad/output_weights" in self.kept:
            both = tf.matmul(states, self.kept["cls/squad/output_weights"]) + self.kept["cls/squad/output_bias"]
            outputs |= {"start_positions": both[..., 0], "end_positions": both[..., 1]}
        return outputs


def write_saved_model(directory, model, vocab_file=None, lower=None):
    """Writes a SavedModel like Keras 2: TensorFlow Hub's later format, or a classifier."""
    if vocab_file:
        model.vocab_file = tf.saved_model.Asset(str(vocab_file))
        model.do_lower_case = tf.Variable(lower, trainable=False)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in names]
    tf.saved_model.save(model, str(directory), tf.function(model.__call__, specs))


def write_v1(directory, weights, config=CONFIG, vocab_file=None, prefix=""):
    """Writes a SavedModel like an Estimator, or in TensorFlow Hub's first format if there is a vocabulary."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        variables = {name: v1.get_variable(prefix + name, initializer=array) for name, array in weights.items()}
        names = ("input_ids", "input_mask", "segment_ids")
        inputs = {name: v1.placeholder(tf.int32, [None, None], name) for name in names}
        states, pooled = encode(variables.get, *inputs.values(), config)
        outputs = {"sequence_output": states, "pooled_output": pooled}
        v1.train.get_or_create_global_step()

        def signature(inputs, outputs):
            infos = [{k: v1.saved_model.build_tensor_info(v) for k, v in side.items()} for side in (inputs, outputs)]
            return v1.saved_model.build_signature_def(*infos, "predict")

        signatures = {"tokens": signature(inputs, outputs)}
        if vocab_file:
            path = tf.constant(str(vocab_file))
            v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
            record = {"vocab_file": path, "do_lower_case": tf.identity(tf.constant(False))}
            signatures["tokenization_info"] = signature({}, record)
        else:
            logits = tf.matmul(pooled, variables["output_weights"], transpose_b=True) + variables["output_bias"]
            probabilities = tf.nn.softmax(logits)
            signatures = {"serving_default": signature(inputs, {"probabilities": probabilities})}
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, assets_collection=assets)
        builder.save()


# --- KerasHub ---------------------------------------------------------------------------------------------------------


def hub_name(released):
    """Returns the name of a variable in KerasHub's files, and the name of the file."""
    attention = "_self_attention_layer"
    parts = {f"attention/self/{part}": f"{attention}/{part}_dense" for part in ("query", "key", "value")} | {
        "attention/output/dense": f"{attention}/output_dense",
        "attention/output/LayerNorm": f"{attention}_norm",
        "intermediate/dense": "_feedforward_intermediate_dense",
        "output/dense": "_feedforward_output_dense",
        "output/LayerNorm": "_feedforward_layer_norm",
    }
    number = "0" if re.search("(kernel|gamma|weights)$", released) else "1"
    if block := re.fullmatch(r"bert/encoder/layer_(\d+)/(.+)/\w+", released):
        suffix = f"_{block.group(1)}" if block.group(1) != "0" else ""
        return "model", f"layers/transformer_encoder{suffix}/{parts[block.group(2)]}/vars/{number}"
    head = "layers/masked_lm_head"
    file, name = {
        "bert/embeddings/word_embeddings": ("model", "layers/reversible_embedding/vars/0"),
        "bert/embeddings/position_embeddings": ("model", "layers/position_embedding/vars/0"),
        "bert/embeddings/token_type_embeddings": ("model", "layers/embedding/vars/0"),
        "cls/predictions/output_bias": ("task", f"{head}/vars/0"),
    }.get(released) or {
        "bert/embeddings/LayerNorm": ("model", f"layers/layer_normalization/vars/{number}"),
        "bert/pooler/dense": ("model", f"layers/dense/vars/{number}"),
        "cls/predictions/transform/dense": ("task", f"{head}/_intermediate_dense/vars/{number}"),
        "cls/predictions/transform/LayerNorm": ("task", f"{head}/_intermediate_layer_norm/vars/{number}"),
        "": ("task", f"layers/dense/vars/{number}"),
    }[released.rpartition("/")[0]]
    return file, name


def write_preset(directory, weights, config=CONFIG, task="", backbone="BertBackbone", activation=None, **tokenizer):
    (directory / "assets/tokenizer").mkdir(parents=True)
    for released, array in weights.items():
        file, name = hub_name(released)
        with h5py.File(directory / f"{file}.weights.h5", "a") as writer:
            writer[name] = garden_array(released, array, config.num_attention_heads)
    values = {
        "vocabulary_size": config.vocab_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "hidden_dim": config.hidden_size,
        "intermediate_dim": config.intermediate_size,
        "dropout": 0.25,
        "max_sequence_length": config.max_position_embeddings,
        "num_segments": config.type_vocab_size,
    }
    (directory / "config.json").write_text(json.dumps({"class_name": backbone, "config": values}))
    if task:
        (directory / "task.json").write_text(json.dumps({"class_name": task, "config": {"activation": activation}}))
    rules = {"lowercase": True, "strip_accents": False, "split": True, "suffix_indicator": "##", "oov_token": "[UNK]"}
    (directory / "tokenizer.json").write_text(json.dumps({"class_name": "BertTokenizer", "config": rules | tokenizer}))
    (directory / "assets/tokenizer/vocabulary.txt").write_text("\n".join(PIECES) + "\n")
