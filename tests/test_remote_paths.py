"""Each program reads and writes URLs; see `in_ram`."""

import json

import pytest

from bert_tf.runtime import files
from bert_tf.training import log
from tests import programs
from tests.conftest import ROOT

pytestmark = [pytest.mark.eager, pytest.mark.plain]

U = "ram://files"
LENGTHS = "--max_seq_length=12 --max_predictions_per_seq=3"
MODEL = f"--vocab_file={U}/vocab.txt --bert_config_file={U}/config.json"
QUESTION = {"id": "1", "question": "b", "answers": [{"text": "c", "answer_start": 4}]}
SQUAD = {"title": "t", "paragraphs": [{"context": "a b c d", "qas": [QUESTION]}]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    programs.write_model_files(directory)
    (directory / "text").mkdir()
    (directory / "text" / "a.txt").write_text("\n".join(f"a b c {letter} e f\n" for letter in "abcdefgh"))
    (directory / "table").mkdir()
    for name in ("train", "dev"):
        (directory / "table" / f"{name}.tsv").write_text("text\tlabel\n" + "a b\tx\nc d\ty\n" * 2)
    (directory / "squad.json").write_text(json.dumps({"version": "1.1", "data": [SQUAD]}))
    (directory / "lines.jsonl").write_text('"a b"\n"c d"\n')
    (directory / "lines.txt").write_text("a b\nc d\n")
    return directory


def run(directory, command):
    programs.run("tests/in_ram.py", directory, *command.split())
    assert not (ROOT / "ram:").exists()


def test_programs_read_and_write_urls(directory):
    run(directory, f"data_prep.build_vocab --input_file={U}/text/*.txt --output_file={U}/words.txt")
    assert "[MASK]" in (directory / "words.txt").read_text().splitlines()
    prepare = f"data_prep.create_pretraining_data --input_file={U}/text --vocab_file={U}/vocab.txt --num_workers=1"
    run(directory, f"{prepare} --output_file={U}/train.tfrecord --work_dir={directory}/work {LENGTHS}")
    pretrain = f"run_pretraining.py --do_train --input_file={U}/train.tfrecord* --output_dir={U}/run {MODEL} {LENGTHS}"
    pretrain += " --train_batch_size=4 --num_warmup_steps=1"
    run(directory, f"{pretrain} --num_train_steps=1")
    run(directory, f"{pretrain} --num_train_steps=2 --allow_changed_settings")
    assert [line["step"] for line in log.read_metrics(str(directory / "run"))] == [1, 2]
    run(directory, f"bert_tf.convert_checkpoint --input={U}/run --output={U}/hf --format=hf")
    finetune = f"--init_checkpoint={U}/hf --max_seq_length=12 --num_train_epochs=1 --do_train"
    classify = f"run_classifier.py --task_name=text --data_dir={U}/table --output_dir={U}/texts --train_batch_size=4"
    run(directory, f"{classify} {finetune} --do_eval --do_export --export_dir={U}/exported")
    run(directory, f"bert_tf.predict --model={U}/exported --input_file={U}/lines.jsonl --output_file={U}/answers.jsonl")
    assert len((directory / "answers.jsonl").read_text().splitlines()) == 2
    answer = f"run_squad.py --train_file={U}/squad.json --predict_file={U}/squad.json --output_dir={U}/answers"
    run(directory, f"{answer} {finetune} --do_predict --max_query_length=4 --train_batch_size=1")
    assert json.loads((directory / "answers" / "predictions.json").read_text()).keys() == {"1"}
    extract = f"extract_features.py --init_checkpoint={U}/hf --layers=-1 --max_seq_length=12"
    run(directory, f"{extract} --input_file={U}/lines.txt --output_file={U}/features.jsonl")
    assert len((directory / "features.jsonl").read_text().splitlines()) == 2


def test_a_remote_file_has_the_methods_of_a_local_one():
    path = "ram://methods/file"
    with files.open_file(path, "w") as writer:
        writer.writelines(["ä\n", "b\r\n", "c"])
    with files.open_file(path) as reader:
        assert list(reader) == ["ä\n", "b\r\n", "c"]
    with files.open_file(path, "a") as writer:
        writer.write("d")
    with files.open_file(path, "rb") as reader:
        assert reader.seek(-2, 2) == 6
        assert reader.read() == b"cd"
        reader.seek(1)
        target = bytearray(2)
        assert reader.readinto(target) == 2 and bytes(target) == b"\xa4\n"


def test_a_remote_directory_is_moved_with_all_its_files():
    with files.replacing_directory("ram://moved/to/") as name:
        for path in (f"{name}/a", f"{name}/inner/b"):
            files.make_directory(path.rpartition("/")[0])
            with files.replacing(path) as writer:
                writer.write(path[-1])
    assert files.find("ram://moved/to/*") == ["ram://moved/to/a", "ram://moved/to/inner"]
    with files.open_file("ram://moved/to/inner/b") as reader:
        assert reader.read() == "b"
