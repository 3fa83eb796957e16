"""A task that shares the preparation of a small corpus, in a module that processes import fast."""

import pathlib
import random
import sys
import time

from bert_tf.runtime.files import InputError
from data_prep.corpus import files, sorted_runs
from data_prep.jobs import preparation, workers
from data_prep.jobs.preparation import Resources, prepare
from tests.data_prep.corpora import preparation_config

TIMEOUT = 1.5


def divide_finely():
    """Divides a small corpus into many pieces of work."""
    files._SPLIT_BYTES = (300, 300)
    preparation._BUCKET_EXAMPLES = (20, 20)
    preparation._RUN_EXAMPLES = (50, 50)
    sorted_runs.MOST_RUNS = 8


def run(folder, text, index, num_tasks, num_workers=1, seconds=0.0, **options):
    """Runs a task, in a process of its own, whose jobs take up to some seconds; prints an InputError to a file."""
    divide_finely()
    run_job = workers._run_job
    rng = random.Random(index)

    def run_slowly(stage, job, advance):
        time.sleep(rng.uniform(0, seconds))
        return run_job(stage, job, advance)

    workers._run_job = run_slowly
    folder = pathlib.Path(folder)
    resources = Resources(
        str(folder / "work"), num_workers, 400 * num_workers, index % num_tasks, num_tasks, task_timeout=TIMEOUT
    )
    try:
        prepare(preparation_config(folder, text, num_shards=3, **options), resources)
    except InputError as error:
        (folder / f"error-{index}").write_text(str(error))
        sys.exit(1)
