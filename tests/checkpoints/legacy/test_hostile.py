"""Readers refuse files that would run code, fill the memory or write outside their directory, and other models."""

import contextlib
import json
import pathlib
import pickle
import resource
import signal
import struct
import zipfile

import h5py
import numpy as np
import pytest

import bert_tf
from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.checkpoints.legacy import keras_names
from bert_tf.config import ModelFiles
from bert_tf.runtime.errors import InputError
from tests.checkpoints.legacy import writers
from tests.checkpoints.legacy.writers import CONFIG, number, numbers, tensor, text
from tests.conftest import assert_refused

CODE = []


def run_code(*_):
    CODE.append("ran")


class Evil:
    def __reduce__(self):
        return run_code, ()


@contextlib.contextmanager
def limits(gigabytes=1, seconds=10):
    """Limits the additional memory and the CPU time of this process."""
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + gigabytes * 10**9, hard))
    handler = signal.signal(signal.SIGPROF, lambda *_: pytest.fail(f"it takes more than {seconds} seconds"))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, old)


def error(path, open_model=checkpoints.open_checkpoint):
    with limits(), pytest.raises(InputError) as raised:
        open_model(path)
    message = str(raised.value)
    assert "\n" not in message and not CODE
    return message


GLOBAL = b"ctests.checkpoints.legacy.test_hostile\nrun_code\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
START = b"\x80\x02}"
SMALL = tensor("0", (2, 3))
BOMB = b"K\x01q\x00" + b"h\x00\x86q\x00" * 64  # 64 nested tuples; each contains the inner tuple twice
DATA = {"0": b"\0" * 24}
PICKLES = {
    "a class with code": (pickle.dumps({"x": Evil()}, 2), "run_code"),
    "a newer pickle": (pickle.dumps({"x": Evil()}, 4), "operation 0x95"),
    "os.system": (b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R.", "os.system"),
    "builtins": (b"\x80\x02cbuiltins\neval\n" + text("1") + b"\x85R.", "builtins.eval"),
    "an instance": (b"\x80\x02(itests.checkpoints.legacy.test_hostile\nrun_code\n.", "operation 0x69"),
    "an extension": (b"\x80\x02\x82\x01.", "operation 0x82"),
    "a method of a dictionary": (b"\x80\x02ccollections\nOrderedDict.fromkeys\n.", "OrderedDict.fromkeys"),
    "code in the state": (START + text("x") + GLOBAL + b"s.", "run_code"),
    "a state that sets attributes": (b"\x80\x02" + REBUILD + b"}" + text("__code__") + b"Ksb.", "damaged"),
    "a huge memo": (b"\x80\x02}r\xff\xff\xff\xff.", None),
    "a huge text": (b"\x80\x02X\xff\xff\xff\x7fabc.", "damaged"),
    "no dictionary": (b"\x80\x02]K\x01a.", "damaged"),
    "a training checkpoint": (START + text("state_dict") + b"}s.", "'state_dict' is not a tensor"),
    "a number": (START + text("epoch") + b"K\x01s.", "'epoch' is not a tensor"),
    "a name that is no text": (b"\x80\x02}K\x01" + SMALL + b"s.", "a key of a dictionary is not a text"),
    "another storage": (START + text("x") + tensor("0", (2,), storage="QInt8Storage") + b"s.", "QInt8Storage"),
    "a foreign storage": (b"\x80\x02" + numbers([1]) + b"Q.", "damaged"),
    "a truncated pickle": (START + text("x") + SMALL, "damaged"),
    "an endless pickle": (b"\x80\x02" + b"(" * 10**6, "damaged"),
    "a deep pickle": (b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".", "damaged"),
    "a huge shape": (START + text("x") + tensor("0", (2**30, 2**30), size=6) + b"s.", "larger than its data"),
    "an expanded tensor": (START + text("x") + tensor("0", (2**30,), [0], 6) + b"s.", "larger than its data"),
    "strides beyond the data": (START + text("x") + tensor("0", (2, 3), [99, 1], 6) + b"s.", "larger than its data"),
    "a negative stride": (START + text("x") + tensor("0", (2, 3), [-3, 1], 6) + b"s.", "larger than its data"),
    "a negative offset": (START + text("x") + tensor("0", (2, 3), offset=-1) + b"s.", "larger than its data"),
    "shared tuples": (BOMB + b".", "not a dictionary"),
    "shared tuples as a key": (START + BOMB + b"Ns.", "a key of a dictionary is not a text"),
    "shared tuples as a tensor": (START + text("x") + REBUILD + BOMB + b"\x85Rs.", "damaged"),
    "shared tuples as a shape": (START + text("x") + REBUILD + b"(" + BOMB * 4 + b"tRs.", "damaged"),
    "shared tuples in an OrderedDict": (b"\x80\x02ccollections\nOrderedDict\n" + BOMB + b"\x85R.", "damaged"),
    "shared tuples of Python's copies": (b"\x80\x02K\x01" + b"2\x86" * 64 + b".", "operation 0x32"),
    "a size that is allocated": (b"\x80\x02\x96" + (1 << 33).to_bytes(8, "little") + b".", "operation 0x96"),
    "a shape of many sizes": (START + text("x") + tensor("0", (1,) * 9) + b"s.", "damaged"),
    "a shape of texts": (START + text("x") + SMALL.replace(number(3), text("3")) + b"s.", "damaged"),
}


@pytest.mark.parametrize("is_older", [False, True], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("name", PICKLES)
def test_pickles(tmp_path, name, is_older):
    pickled, message = PICKLES[name]
    path = tmp_path / "pytorch_model.bin"
    if is_older:
        writers.write_older_bin(path, {}, pickled)
    else:
        writers.write_torch(path, {}, DATA, pickled)
    found = error(path)
    assert message is None or message in found.partition("pytorch_model.bin: ")[2]


def test_a_tensor_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    weights = writers.arrays()
    writers.write_bin(path, weights)
    data = bytearray(path.read_bytes())
    start = data.index(weights["bert/pooler/dense/bias"].tobytes())
    data[start] ^= 1
    path.write_bytes(data)
    read = checkpoints.open_checkpoint(path).read
    assert_refused(r"model.bin: bert.pooler.dense.bias is damaged \(the checksum", read, "bert/pooler/dense/bias")


def test_data_of_another_size_is_named(tmp_path):
    path, name = tmp_path / "pytorch_model.bin", "bert.embeddings.word_embeddings.weight"
    writers.write_torch(path, {name: tensor("0", (3, 2))}, {"0": bytes(24)})
    assert not checkpoints.open_checkpoint(path).read("bert/embeddings/word_embeddings").any()
    writers.write_torch(path, {name: tensor("0", (3, 2))}, {"0": bytes(20)})
    assert f"the data of {name} has another size" in error(path)


def test_other_zip_files(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    pickled = START + text("x") + SMALL + b"s."
    writers.write_torch(path, {}, DATA, pickled + b"\0" * (1 << 25), zipfile.ZIP_DEFLATED)
    assert "archive/data.pkl is compressed or too large" in error(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("b/data.pkl", pickled)
    assert "damaged" in error(path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("b/data.pkl", pickled)
    assert "two of its files have the same name" in error(path)
    path.write_bytes(path.read_bytes()[:40])
    assert "damaged" in error(path)
    for content in (b"", b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(content)
        assert "damaged" in error(path)


def test_damage_in_the_older_form(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    writers.write_older_bin(path, writers.hf_arrays(writers.arrays()))
    checkpoints.open_checkpoint(path)
    data = path.read_bytes()
    for size in (15, 40, 300, 3000, len(data) - 1):
        path.write_bytes(data[:size])
        assert "damaged" in error(path)
    path.write_bytes(data.replace(b"\x88", b"\x89", 1))
    assert "not little-endian" in error(path)
    first = data.index(b"]")  # the position of the keys
    path.write_bytes(data[:first] + data[first:].replace(struct.pack("<q", 144), struct.pack("<q", 1 << 40), 1))
    assert "damaged" in error(path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "tf_model.h5", "saved_model.pb"])
def test_endless_devices_are_not_read(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/zero")
    assert f"{name}' is a device, a pipe or a socket" in error(tmp_path)


def test_sizes_are_compared_before_memory_is_allocated(tmp_path):
    for place, name in (("m", "vocab_size"), ("n", "max_position_embeddings"), ("o", "num_hidden_layers")):
        writers.write_files(tmp_path / place, CONFIG.replace(**{name: 300_000_000}))
        writers.write_bin(tmp_path / place / "pytorch_model.bin", writers.arrays())
        assert "bytes, but the config describes" in error(tmp_path / place, bert_tf.load_model)
        assert "bytes, but the config describes" in error(ModelFiles(str(tmp_path / place)), pretrained.read_model)
    names, whole, values = ["w"], ["900000000 128 0,10:0,128"], [np.zeros((10, 128), np.float32)]  # a slice of a table
    writers.tf.raw_ops.SaveV2(prefix=str(tmp_path / "x"), tensor_names=names, shape_and_slices=whole, tensors=values)
    assert "x: the data has 5120 bytes instead of 460800000000" in error(tmp_path / "x")
    whole, values = ["300000000 0,10"], [writers.tf.constant(["x"] * 10)]
    writers.tf.raw_ops.SaveV2(prefix=str(tmp_path / "y"), tensor_names=names, shape_and_slices=whole, tensors=values)
    assert "y: the data has 24 bytes instead of 300000000" in error(tmp_path / "y")


def test_a_key_of_a_config_that_occurs_twice_is_found_quickly(tmp_path):
    writers.write_files(tmp_path)
    writers.write_bin(tmp_path / "pytorch_model.bin", writers.arrays())
    keys = "".join(f'"{number}": 0,' for number in range(300_000))
    (tmp_path / "config.json").write_text(f'{{{keys} "299999": 0}}')
    assert "the key '299999' occurs twice" in error(tmp_path, bert_tf.load_model)


def test_a_message_has_a_limited_length_and_no_control_characters(tmp_path):
    path = tmp_path / "pytorch_model.bin.index.json"
    for name, shown in (("x" * 5000, "xx ... xx"), ("a\x1b[0m", r"a\x1b[0m")):
        path.write_text(json.dumps({"weight_map": {"x": f"{name}.bin"}}))
        message = error(path)
        assert shown in message
        assert len(message) < 2100


@pytest.mark.parametrize("shard", ["../secret.bin", "/etc/passwd", "other.index.json", "x.h5", "a/b.bin", "", ".."])
def test_an_index_cannot_leave_its_directory(tmp_path, shard):
    (tmp_path / "secret.bin").write_bytes(b"")
    path = tmp_path / "m/pytorch_model.bin.index.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"weight_map": {"x": shard}}))
    assert f"{shard!r} is not the name of a file of weights" in error(path)


def add_virtual(file):
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (2,))
    file.create_virtual_dataset("x", layout)


def model_config(name):
    layer = {"class_name": name, "config": {"function": "e"}}
    return json.dumps({"class_name": "Model", "config": {"layers": [layer]}})


H5 = {
    "a Lambda layer": (lambda file: file.attrs.update(model_config=model_config("Lambda")), "a Lambda, which contains"),
    "a TFOpLambda": (lambda file: file.attrs.update(model_config=model_config("TFOpLambda")), "TFOpLambda"),
    "an external link": (lambda file: file.update(x=h5py.ExternalLink("/etc/passwd", "y")), "x is a link"),
    "a soft link": (lambda file: file.update(x=h5py.SoftLink("/bert")), "x is a link"),
    "an external array": (lambda f: f.create_dataset("x", (2,), "f4", external=[("/etc/passwd", 0, 8)]), "x is not an"),
    "a virtual array": (add_virtual, "x is not an array"),
    "a huge shape": (lambda file: file.create_dataset("x", (2**40,), "f4", chunks=(2**10,)), "has 0 bytes"),
    "compressed zeros": (lambda f: f.create_dataset("x", data=np.zeros(10**6), compression="gzip"), "x of shape"),
    "texts": (lambda file: file.create_dataset("x", data=["a", "b"], dtype=h5py.string_dtype()), "x is not an array"),
    "a cycle of groups": (lambda file: file.update(x=file["bert"]), None),
    "another variable": (lambda file: file.update(x=np.zeros(2, "f4")), "x is not a variable of BERT"),
    "two poolers": (lambda f: f.update({"y/bert/pooler/dense/bias:0": np.zeros(12, "f4")}), "are both bert/pooler"),
}


@pytest.mark.parametrize("name", H5)
def test_hdf5_files(tmp_path, name):
    change, message = H5[name]
    path = tmp_path / "tf_model.h5"
    writers.write_h5(path, writers.arrays())
    with h5py.File(path, "a") as file:
        change(file)
    if message is None:
        checkpoints.open_checkpoint(path)
    else:
        assert message in error(path)


@pytest.mark.parametrize("size", [0, 100, 3000, -1])
def test_a_truncated_hdf5_file(tmp_path, size):
    path = tmp_path / "tf_model.h5"
    writers.write_h5(path, writers.arrays())
    path.write_bytes(path.read_bytes()[:size])
    assert "tf_model.h5: not an HDF5 file of weights, or damaged" in error(path)


OTHER_NAMES = (
    "tf_roberta_model/roberta/encoder/layer_._0/attention/self/query/kernel:0",
    "tf_distil_bert_model/distilbert/transformer/layer_._0/attention/q_lin/kernel:0",
    "tf_albert_model/albert/encoder/embedding_hidden_mapping_in/kernel:0",
    "tf_electra_model/electra/encoder/layer_._0/attention/self/query/kernel:0",
    "tf_electra_model/electra/embeddings/LayerNorm/gamma:0",
    "tf_roberta_model/roberta/embeddings/word_embeddings/weight:0",
    "layers/token_and_position_embedding/token_embedding/vars/0",
    "layers/transformer_encoder/_unknown/vars/0",
    "transformer/layer_0/self_attention/gate/kernel",
    "word_embeddings_1/embeddings",
)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_models_are_unknown(name):
    assert keras_names.to_released(name) is None


def test_unknown_names_that_look_like_paths(tmp_path):
    items = {"/x": SMALL, "y": SMALL}
    writers.write_torch(tmp_path / "other.bin", items, DATA)
    assert "/x is not a variable of BERT" in error(tmp_path / "other.bin")
    table = {"bert_encoder_v2/word_embeddings/embeddings": ()}
    assert_refused("x is not a variable of BERT", keras_names.translated, table | {"x": (2,)}, None, "here")
    table |= {"x/kernel": (12, 2), "x/bias": (2,)}
    assert_refused("x/kernel is not a variable of BERT", keras_names.translated, table, None, "here")


# --- SavedModels and presets ------------------------------------------------------------------------------------------


def write_saved_model(directory, **options):
    writers.write_saved_model(directory, writers.Garden(writers.arrays(), **options))


def test_damaged_saved_models(tmp_path):
    write_saved_model(tmp_path / "m")
    path = tmp_path / "m/saved_model.pb"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert "saved_model.pb: damaged, or not a SavedModel" in error(tmp_path / "m", bert_tf.load_model)
    path.write_bytes(data)
    index = tmp_path / "m/variables/variables.index"
    index.rename(tmp_path / "m/x")
    assert "variables.index. Copy the complete directory" in error(tmp_path / "m")


@pytest.mark.parametrize("graph", [["a", "b"], 3.0])
def test_a_checkpoint_whose_object_graph_is_not_one_text(tmp_path, graph):
    writers.tf.raw_ops.SaveV2(
        prefix=f"{tmp_path}/m.ckpt",
        tensor_names=["_CHECKPOINTABLE_OBJECT_GRAPH"],
        shape_and_slices=[""],
        tensors=[writers.tf.constant(graph)],
    )
    assert "m.ckpt: damaged, or not a SavedModel" in error(tmp_path / "m.ckpt")


def test_saved_models_of_other_models(tmp_path):
    model = writers.tf.Module()
    model.a = writers.tf.Variable([1.0, 2.0], name="dense/kernel")
    writers.tf.saved_model.save(model, str(tmp_path / "m"))
    assert "dense/kernel is not a variable of BERT" in error(tmp_path / "m", bert_tf.load_model)
    model = writers.Garden(writers.arrays())
    model.a = writers.tf.Variable([1.0, 2.0], name="adapter/scale")
    writers.write_saved_model(tmp_path / "n", model)
    assert "adapter/scale is not a variable of BERT" in error(tmp_path / "n", bert_tf.load_model)
    model.a = writers.tf.Variable(np.ones((12, 4), np.float32), name="bert_encoder_v2/pooler_transform/bias")
    writers.write_saved_model(tmp_path / "o", model)
    assert "two variables are called bert_encoder_v2/pooler_transform/bias" in error(tmp_path / "o")


def test_an_activation_that_is_not_clear_is_named(tmp_path):
    model = writers.Garden(writers.arrays())
    call = type(model).__call__

    def with_power(ids, mask, segments):
        outputs = call(model, ids, mask, segments)
        return outputs | {"pooled_output": writers.tf.pow(outputs["pooled_output"], 3)}

    specs = [writers.tf.TensorSpec([None, None], writers.tf.int32)] * 3
    writers.tf.saved_model.save(model, str(tmp_path / "m"), writers.tf.function(with_power, specs))
    assert "hidden_act is not clear (found: ['gelu', 'gelu_erf'])" in error(tmp_path / "m", bert_tf.load_model)


def test_a_constant_of_a_huge_shape_is_not_expanded(tmp_path):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    write_saved_model(tmp_path / "m")
    path = tmp_path / "m/saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    node = saved.meta_graphs[0].graph_def.node.add(op="Const", name="x/batchnorm/add/y")
    node.attr["value"].tensor.dtype = 1
    node.attr["value"].tensor.float_val.append(1.0)
    for _ in range(4):
        node.attr["value"].tensor.tensor_shape.dim.add(size=2**20)
    for dtype in (1, 8, 14, 99):  # float, complex, bfloat16, unknown
        for sizes in ([3], [-1, -1]):
            node = saved.meta_graphs[0].graph_def.node.add(op="Const", name="y/batchnorm/add/y")
            node.attr["value"].tensor.dtype, node.attr["value"].tensor.tensor_content = dtype, b"12345678"
            for size in sizes:
                node.attr["value"].tensor.tensor_shape.dim.add(size=size)
    path.write_bytes(saved.SerializeToString())
    assert bert_tf.load_model(tmp_path / "m").config == CONFIG


@pytest.mark.parametrize(
    "options, message",
    [
        ({"backbone": "RobertaBackbone"}, "is a preset of RobertaBackbone. Use a preset of BertBackbone"),
        ({"task": "BertTextEmbedder"}, "is a preset of BertTextEmbedder"),
        ({"activation": {"class_name": "system"}, "task": "BertTextClassifier"}, "the activation of the"),
        ({"split": False}, "split is False instead of True"),
        ({"suffix_indicator": "@@"}, "suffix_indicator is '@@'"),
    ],
)
def test_other_presets(tmp_path, options, message):
    writers.write_preset(tmp_path / "m", writers.arrays(), **options)
    assert message in error(tmp_path / "m", bert_tf.load_model)


def test_presets_of_other_sizes_and_layers(tmp_path):
    weights = writers.arrays(CONFIG.replace(num_hidden_layers=3))
    writers.write_preset(tmp_path / "m", weights)  # the config has two layers
    message = r"bert/encoder/layer_2/\S+ is in the checkpoint, but not in the model"
    assert_refused(message, bert_tf.load_model, tmp_path / "m")
    with h5py.File(tmp_path / "m/model.weights.h5", "a") as file:
        file["layers/dense_1/vars/0"] = np.zeros(2, np.float32)
    assert "layers/dense_1/vars/0 is not a variable of BERT" in error(tmp_path / "m")
    (tmp_path / "m/config.json").write_text("{}")
    assert "class_name" in error(tmp_path / "m", bert_tf.load_model)
