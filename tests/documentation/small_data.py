"""Replaces large files and long runs when the documentation's commands are run.

A command is run unchanged, in a directory with small files under the names in the documentation. The flags of `SMALLER`
are added at the end, because the last value of a flag counts.
"""

import itertools
import json
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence

from tests.documentation.pages import ROOT

# Program -> pairs of the start of a flag in the command ("" for any command) and the flags that make the run small.
SMALLER: dict[str, list[tuple[str, list[str]]]] = {
    "run_pretraining": [
        ("", ["--num_train_steps=2", "--num_warmup_steps=1", "--train_batch_size=8"]),
        ("", ["--eval_batch_size=2", "--max_eval_steps=1", "--log_steps=1"]),
        ("--model_size", ["--num_hidden_layers=1", "--hidden_size=12", "--num_attention_heads=3"]),
        ("--recipe", ["--num_hidden_layers=1", "--hidden_size=12", "--num_attention_heads=3"]),
        ("--second_gradient", ["--gradient_accumulation_steps=1", "--second_gradient_accumulation_steps=2"]),
        ("--recipe=lamb_64k", ["--second_train_batch_size=4", "--second_phase_proportion=0.5"]),
    ],
    "run_classifier": [
        ("", ["--num_train_epochs=1", "--train_batch_size=8", "--max_seq_length=24", "--num_workers=1"]),
        ("--sweep", ["--sweep_batch_sizes=8", "--sweep_learning_rates=1e-3", "--sweep_epochs=1"]),
        ("--num_restarts", ["--num_restarts=2"]),
        ("--feature_layers", ["--feature_layers=-1"]),
        ("--bilstm_layers", ["--bilstm_layers=1"]),
        ("--bilstm_units", ["--bilstm_units=8"]),
        ("--long_documents", ["--max_seq_length=128", "--num_train_epochs=0.25"]),
        ("--reinit_layers", ["--reinit_layers=1"]),
    ],
    "run_squad": [("", ["--num_train_epochs=1", "--train_batch_size=4", "--num_workers=1"])],
    "benchmarks.input_pipeline": [
        ("", ["--records=600", "--rounds=1", "--batch_size=64", "--workers_batch_size=64", "--workers=2"])
    ],
    "extract_features": [("", ["--layers=-1"])],
    "data_prep.build_vocab": [("", ["--vocab_size=600", "--num_workers=1"])],
    "data_prep.create_pretraining_data": [
        ("--dupe_factor", ["--dupe_factor=1"]),
        ("--num_shards=64", ["--num_shards=4"]),
    ],
    "data_prep.beam_pipeline": [("", ["--num_shards=2"])],
    "tests.torture": [("", ["--minutes=0", "--only=kills,damage"])],
    # A run takes minutes. tests/experiments starts one.
    "experiments": [("", ["--list"])],
}
# Notebook -> parameters in the first cell that make it small.
_MODEL = "../../build/quickstart/pretrained"
NOTEBOOKS: dict[str, dict[str, object]] = {
    "movie_reviews": {"MODEL": _MODEL, "REVIEWS": "../../reviews.txt", "TRAIN": 16, "TEST": 8, "EPOCHS": 2},
    "ner": {"MODEL": _MODEL, "WNUT": "../../conll2003", "TRAIN_FILE": "eng.train", "TEST_FILE": "eng.testa"}
    | {"TRAIN": 8, "TEST": 4, "EPOCHS": 2},
    "pretraining": {"STEPS": 2, "BATCH": 4},
    "serving": {"PRETRAINED": _MODEL, "EPOCHS": 2},
    "squad": {"MODEL": _MODEL, "SQUAD": "../../squad", "TRAIN": 12, "TEST": 2, "EPOCHS": 2},
}
RELEASED = "uncased_L-12_H-768_A-12"
# Directories and programs of the repository.
LINKS = ("bert_tf", "data_prep", "benchmarks", "experiments", "tests", "extract_features.py")
LINKS += ("run_pretraining.py", "run_classifier.py", "run_squad.py")
# Text with which a page names the source of files -> files that neither the repository nor `make quickstart` contains.
# Pages make the files of `None` themselves.
SOURCES = {
    "downloads.md": (RELEASED, "cased_L-12_H-768_A-12", "glue", "squad", "swag", "conll2003", "triviaqa"),
    "download": ("google-bert", "sentence-transformers"),
    "make notebook-files": ("build/notebooks",),
    "CoNLL-U files": ("de-*.conllu",),
    "`corpus/*.txt`": ("corpus",),
    "pretraining-data.md#from-your-own-text": ("vocab.txt", "train128.tfrecord-*", "train512.tfrecord-*"),
    "here `bert_bin`": ("bert_bin",),
    "here `bert_en_uncased`": ("bert_en_uncased",),
    "here `export/1700000000`": ("export",),
    "here `films_h5`": ("films_h5",),
    "here `films_preset`": ("films_preset",),
    None: (
        "tables",
        "choices",
        "heldout128.*",
        "paragraphs.txt",
        "texts.txt",
        "reviews.txt",
        "config.json",
        "with_pooler",
    ),
}
_CONFIG = {"vocab_size": 600, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
_CONFIG |= {"intermediate_size": 20, "type_vocab_size": 2}
_CONTEXT = "The war ended in 1945, and the city of Rome was free. Its people danced in the streets."


def smaller_flags(program: str, arguments: Sequence[str]) -> list[str]:
    """Returns the flags of `SMALLER` for a command."""
    return [
        flag
        for given, flags in SMALLER.get(program, ())
        for flag in flags
        if not given or any(argument.startswith(given) for argument in arguments)
    ]


def remove_without_source(directory: pathlib.Path, page: str) -> None:
    """Removes the files of `SOURCES` whose source a page does not name from a directory."""
    for text, names in SOURCES.items():
        for path in itertools.chain.from_iterable(map(directory.glob, names)):
            if text is None or text not in page:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_files(directory: pathlib.Path) -> None:
    """Writes all files that no program makes."""
    for name in LINKS:
        (directory / name).symlink_to(ROOT / name)
    for name, lines in itertools.chain(_examples(), _texts(), _glue(), _answers()):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shutil.copytree(directory / "examples" / "corpus", directory / "corpus")


def commands() -> str:
    """Returns the shell commands that make the other files: the outputs of `make quickstart`, and checkpoints."""
    lengths = "--max_seq_length=16 --max_predictions_per_seq=3"
    config = json.dumps(_CONFIG)
    return f"""
        quickstart=build/quickstart
        mkdir -p $quickstart
        python -m data_prep.build_vocab --input_file='examples/corpus/*.txt' --output_file=$quickstart/vocab.txt
        sed "s/600/$(wc -l < $quickstart/vocab.txt)/" <<< '{config}' > config.json
        for name in corpus heldout; do
            python -m data_prep.create_pretraining_data --input_file=examples/$name* --dupe_factor=1 {lengths} \\
                --vocab_file=$quickstart/vocab.txt --output_file=$quickstart/$name.tfrecord
        done
        cp $quickstart/vocab.txt .
        for data in 'train128 128 20' 'train512 512 77' 'heldout128 128 20'; do
            set -- $data
            python -m data_prep.create_pretraining_data --input_file=examples/heldout.txt --dupe_factor=1 \\
                --max_seq_length=$2 --max_predictions_per_seq=$3 --num_shards=2 --vocab_file=vocab.txt \\
                --output_file=$1.tfrecord
        done
        for run in "mlm $quickstart/pretrained" 'mlm_nsp with_pooler'; do
            set -- $run
            python run_pretraining.py --do_train --bert_config_file=config.json --vocab_file=$quickstart/vocab.txt \\
                --input_file=$quickstart/corpus.tfrecord --objective=$1 --output_dir=$2 {lengths}
        done
        python -m bert_tf.convert_checkpoint --input=with_pooler --output={RELEASED} --format=tf1
        cp -r {RELEASED} cased_L-12_H-768_A-12
        sed -i 's/^the$/The/' cased_L-12_H-768_A-12/vocab.txt
        rm cased_L-12_H-768_A-12/tokenizer_config.json
        python -m bert_tf.convert_checkpoint --input={RELEASED} --output=google-bert/bert-base-uncased --format=hf
        mkdir sentence-transformers
        cp -r google-bert/bert-base-uncased sentence-transformers/all-MiniLM-L6-v2
        python run_classifier.py --task_name=text --data_dir=examples/authors --output_dir=$quickstart/authors \\
            --vocab_file=$quickstart/vocab.txt --bert_config_file=$quickstart/pretrained/bert_config.json \\
            --init_checkpoint=$quickstart/pretrained --do_train --max_seq_length=24
        python -m tests.documentation.old_models
        """


# File -> lines.
File = tuple[str, Iterable[str]]


def _examples() -> Iterator[File]:
    for path in [*(ROOT / "examples" / "corpus").glob("*.txt"), ROOT / "examples" / "heldout.txt"]:
        lines = path.read_text(encoding="utf-8").splitlines()[:60]
        yield str(path.relative_to(ROOT)), [*lines[:30], "", *lines[30:]]  # two documents
    for name in ("train.tsv", "dev.tsv"):
        header, *rows = (ROOT / "examples" / "authors" / name).read_text(encoding="utf-8").splitlines()
        yield f"examples/authors/{name}", [header, *rows[:: len(rows) // 24]]


def _texts() -> Iterator[File]:
    for name in ("reviews.txt", "build/notebooks/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"):
        yield name, (f"{i}\t{(i % 3 - 1) * 1.5}\tA film about the number {i}." for i in range(48))
    yield "texts.txt", ["Who was Jim Henson? ||| He was a puppeteer.", "The whale was white."]
    yield "paragraphs.txt", ["The whale was white. It was large.", "", "Call me so. Some years ago, I sailed."]
    choices = [json.dumps({"prompt": "He sat", "endings": ["down.", "blue.", "up."], "label": i % 3}) for i in range(8)]
    for split, count in (("train", 24), ("dev", 8), ("test", 4)):
        rows = (
            f'{i},s{i},the {["ball", "whale"][i % 2]} {i},"sea{"|dance" * (i % 3 > 0)}",{i % 5}' for i in range(count)
        )
        yield f"tables/{split}.csv", ["id,subject,body,topics,stars", *rows]
        yield f"choices/{split}.jsonl", choices
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
    for split in ("train", "val", "test"):
        yield f"swag/{split}.csv", [header, *(f"{i},v,1,s,He sat,He,gold,a,b,c,d,{i % 4}" for i in range(16))]
    sentence = ["Ada NNP B-NP B-PER", "lives VBZ B-VP O", "in IN B-PP O", "Rome NNP B-NP B-LOC", ". . O O", ""]
    for name in ("eng.train", "eng.testa", "eng.testb"):
        yield f"conll2003/{name}", ["-DOCSTART- -X- O O", "", *(sentence * 8)]
    words = ["1\tAda\tAda\tPROPN\tNE\t_\t0\troot\t_\t_", "2\tlebt\tleben\tVERB\tVVFIN\t_\t1\tdep\t_\t_", ""]
    for split in ("train", "dev"):
        yield f"de-{split}.conllu", ["# text = Ada lebt", *(words * 16)]


def _glue() -> Iterator[File]:
    pairs = [(f"the cat {i}", f"a dog {i // 2}") for i in range(16)]
    columns = {"RTE": ("sentence1", "sentence2"), "WNLI": ("sentence1", "sentence2"), "QNLI": ("question", "sentence")}
    for split in ("train", "dev", "test"):
        is_test = split == "test"
        header = f"{'index' if is_test else 'Quality'}\t#1 ID\t#2 ID\t#1 String\t#2 String"
        firsts = range(16) if is_test else [0, 1] * 8
        yield (
            f"glue/MRPC/{split}.tsv",
            [header, *(f"{i}\t1\t2\t{a}\t{b}" for i, (a, b) in zip(firsts, pairs, strict=True))],
        )
        cola = (f"gj\t{i % 2}\t\t{a}" for i, (a, _) in enumerate(pairs))
        sst = ("sentence\tlabel", *(f"{a}\t{i % 2}" for i, (a, _) in enumerate(pairs)))
        numbered = ["index\tsentence", *(f"{i}\t{a}" for i, (a, _) in enumerate(pairs))]
        yield f"glue/CoLA/{split}.tsv", numbered if is_test else cola
        yield f"glue/SST-2/{split}.tsv", numbered if is_test else sst
        for task, names in columns.items():
            labels = ("0", "1") if task == "WNLI" else ("entailment", "not_entailment")
            rows = [["index", *names, "label"], *([str(i), *pair, labels[i % 2]] for i, pair in enumerate(pairs))]
            yield f"glue/{task}/{split}.tsv", ("\t".join(row[: -1 if is_test else None]) for row in rows)


def _answers() -> Iterator[File]:
    answer = {"text": "1945", "answer_start": _CONTEXT.index("1945")}
    for version, split in itertools.product(("v1.1", "v2.0"), ("train", "dev")):
        questions = []
        for i in range(12 if split == "train" else 4):
            is_impossible = version == "v2.0" and i % 3 == 0
            question = {"id": f"{split}{i}", "question": "When did the war end?"}
            question["answers"] = [] if is_impossible else [answer]
            questions.append(question | ({"is_impossible": is_impossible} if version == "v2.0" else {}))
        article = {"title": "War", "paragraphs": [{"context": _CONTEXT, "qas": questions}]}
        yield f"squad/{split}-{version}.json", [json.dumps({"version": version, "data": [article]})]
    entry = {"Answer": {"Aliases": ["1945"], "Value": "1945"}, "EntityPages": [{"Filename": "War.txt"}]}
    entries = [entry | {"Question": "When did the war end?", "QuestionId": f"tc_{i}"} for i in range(8)]
    yield "triviaqa/qa/wikipedia-train.json", [json.dumps({"Data": entries})]
    yield "triviaqa/evidence/wikipedia/War.txt", [_CONTEXT]
