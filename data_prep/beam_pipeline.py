"""Makes pre-training data on many machines, with Apache Beam (Spark, Flink, Dataflow, or its local runner).

    python -m data_prep.beam_pipeline --input_file=... --output_file=... --vocab_file=... --num_shards=64 \
        -- --runner=FlinkRunner --flink_master=...

The arguments after "--" are Beam's. Flags and files are the same as in create_pretraining_data. All machines need
this package, and access to the input and the output (a shared directory, or gs://...). Each shard is sorted in the
memory of one machine, so --num_shards must be large enough. Needs the extra `beam`: `pip install '.[beam]'`.
"""

from bert_tf import program_flags
from bert_tf.runtime import lazy_imports, program
from data_prep.create_pretraining_data import REQUIRED, report_text, say_if_finished, say_summary
from data_prep.options import DataOptions, preparation_config

_OPTIONS = program_flags.SettingsFlags(DataOptions, **dict.fromkeys(REQUIRED))


def main(*beam_options: str) -> None:
    """Runs the pipeline defined by the flags."""
    beam = lazy_imports.require("apache_beam", "This program")
    from apache_beam.options.pipeline_options import PipelineOptions

    from data_prep.beam import PreparePretrainingData, counts_of

    program.check_needs()
    options = _OPTIONS.config()
    config = preparation_config(options)
    if say_if_finished(config):
        return
    report_text(config, options)
    pipeline = beam.Pipeline(options=PipelineOptions(list(beam_options)))
    pipeline | PreparePretrainingData(config)
    result = pipeline.run()
    result.wait_until_finish()
    say_summary(counts_of(result), config)


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=REQUIRED, takes_names=True)


if __name__ == "__main__":
    cli()
