"""Makes pre-training data: TFRecords of masked sentence pairs from text.

By default the text is streamed through one or more processes in bounded memory, and the output depends on text, flags
and seed only. `--reference_order` makes the original program's examples in its order instead.
"""

import shutil

from absl import flags

from bert_tf.runtime import files, program
from bert_tf.runtime.claims import claimed
from bert_tf.runtime.files import InputError
from bert_tf.runtime.parallel import available_cores
from bert_tf.tokenization import FullTokenizer
from data_prep import preparation_flags
from data_prep.examples.reference_order import write_reference_examples
from data_prep.jobs.preparation import Resources, prepare

flags.adopt_module_key_flags(preparation_flags)
program.section("Content of the records")
_REFERENCE_ORDER = flags.DEFINE_bool("reference_order", False, "Make the original program's examples in its order.")
program.section("Processes, which change no output")
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 0, "Number of processes; 0 for one per core.", lower_bound=0)
_MEMORY_BUDGET_MB = flags.DEFINE_integer(
    "memory_budget_mb", 0, "Memory of all processes; 0 for 400 MB each.", lower_bound=0
)
_WORK_DIR = flags.DEFINE_string(
    "work_dir",
    None,
    "Folder that keeps unfinished work and tokenized text; by default a temporary one beside the output.",
)
_DEFAULT_WORKER_MB = 400

# The flags that the original program doesn't have.
_NOT_IN_REFERENCE_ORDER = (
    *("objective", "masking", "draw_per_word", "word_segmenter", "input_format", "documents", "split_sentences"),
    *("on_bad_line", "text_column", "num_workers", "memory_budget_mb", "work_dir"),
)


def main() -> None:
    """Makes the data that the flags describe."""
    config = preparation_flags.preparation_config(_REFERENCE_ORDER.value)
    if _REFERENCE_ORDER.value:
        _refuse_in_reference_order()
        tokenizer = FullTokenizer(config.tokenizer.vocab_file, config.tokenizer.do_lower_case)
        paths = [file.path for file in config.inputs]
        counts = write_reference_examples(paths, tokenizer, config.rules, config.examples, config.shards)
    elif config.shards.are_finished():
        preparation_flags.say_already_finished(config)
        return
    else:
        resources = _resources(f"{config.shards.paths[0]}.work")
        if _WORK_DIR.value:
            counts = prepare(config, resources)
        else:
            with claimed(resources.work_dir, "--output_file", "output", doing="makes the same files", advice=""):
                counts = prepare(config, resources)
                shutil.rmtree(resources.work_dir)
    preparation_flags.say_summary(counts, config.shards)


def _resources(default_work_dir: str) -> Resources:
    work_dir = _WORK_DIR.value or default_work_dir
    if files.is_remote(work_dir):
        raise InputError(f"--work_dir is {work_dir}, but a local folder (or a mounted one) is needed. Set --work_dir.")
    num_workers = _NUM_WORKERS.value or available_cores()
    memory_mb = _MEMORY_BUDGET_MB.value or _DEFAULT_WORKER_MB * num_workers
    return Resources(work_dir, num_workers, memory_mb)


def _refuse_in_reference_order() -> None:
    for name in _NOT_IN_REFERENCE_ORDER:
        if flags.FLAGS[name].value != flags.FLAGS[name].default:
            raise InputError(f"--{name} can't be used with --reference_order: the original program has no such flag.")


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file", "vocab_file"])


if __name__ == "__main__":
    cli()
