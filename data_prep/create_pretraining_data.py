"""Makes pre-training data: text to TFRecords of masked sentence pairs.

By default text is streamed through any number of processes in bounded memory, and the output depends on text, flags
and seed only. `--reference_order` gives the original program's examples in its order instead.
"""

import shutil

from absl import flags

from bert_tf.runtime import files, program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tokenization import FullTokenizer
from data_prep import preparation_flags
from data_prep.examples.outputs import OutputSet
from data_prep.examples.reference_order import write_reference_examples
from data_prep.jobs.preparation import Resources, prepare
from data_prep.jobs.workers import available_cores

flags.adopt_module_key_flags(preparation_flags)
_REFERENCE_ORDER = flags.DEFINE_bool("reference_order", False, "The original program's examples, in its order.")
# How it is made; nothing of this changes the output but for the number of files.
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 0, "Processes; 0 takes one a core.")
_MEMORY_BUDGET_MB = flags.DEFINE_integer("memory_budget_mb", 0, "Memory of all processes; 0 takes 400 a process.")
_WORK_DIR = flags.DEFINE_string(
    "work_dir",
    None,
    "Where unfinished work lies, and tokenized text is kept for other settings; else beside the output.",
)
_TASK_INDEX = flags.DEFINE_integer("task_index", 0, "Which of --num_tasks machines, sharing --work_dir, this is.")
_NUM_TASKS = flags.DEFINE_integer("num_tasks", 1, "Machines that do the work together.")

_DEFAULT_WORKER_MB = 400

# What the release has no notion of.
_NOT_IN_REFERENCE_ORDER = (
    *("objective", "masking", "draw_per_word", "word_segmenter", "input_format", "documents", "split_sentences"),
    *("on_bad_line", "num_workers", "memory_budget_mb", "work_dir", "task_index", "num_tasks"),
)


def main() -> None:
    """Flags to what is to be made, and by whom."""
    made = preparation_flags.preparation(_REFERENCE_ORDER.value)
    if _REFERENCE_ORDER.value:
        _refuse_in_reference_order()
        tokenizer = FullTokenizer(made.tokenizer.vocab_file, made.tokenizer.do_lower_case)
        paths = [file.path for file in made.inputs]
        counts = write_reference_examples(paths, tokenizer, made.rules, made.examples, made.outputs)
    elif made.outputs.are_finished():
        say("All files are there already, made with these settings. Remove them to make them anew.")
        return
    else:
        resources = _resources(made.outputs)
        counts = prepare(made, resources)
        if not _WORK_DIR.value:
            shutil.rmtree(resources.work_dir)
    preparation_flags.say_summary(counts)


def _resources(outputs: OutputSet) -> Resources:
    work_dir = _WORK_DIR.value or f"{outputs.paths[0]}.work"
    if files.is_remote(work_dir):
        raise InputError(f"--work_dir is {work_dir}, but a local folder (or a mounted one) is needed. Set --work_dir.")
    if _NUM_TASKS.value > 1 and not _WORK_DIR.value:
        raise InputError("--num_tasks needs --work_dir, a folder that all tasks share.")
    num_workers = _NUM_WORKERS.value or available_cores()
    return Resources(
        work_dir,
        num_workers,
        _MEMORY_BUDGET_MB.value or _DEFAULT_WORKER_MB * num_workers,
        _TASK_INDEX.value,
        _NUM_TASKS.value,
    )


def _refuse_in_reference_order() -> None:
    for name in _NOT_IN_REFERENCE_ORDER:
        if flags.FLAGS[name].value != flags.FLAGS[name].default:
            raise InputError(f"--{name} is new, so it can't be given with --reference_order, which does as released.")


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file", "vocab_file"])


if __name__ == "__main__":
    cli()
