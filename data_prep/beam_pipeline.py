"""Makes pre-training data on many machines, with Apache Beam (Spark, Flink, Dataflow, or its local runner).

    python -m data_prep.beam_pipeline --input_file=... --output_file=... --vocab_file=... --num_shards=64 \
        -- --runner=FlinkRunner --flink_master=...

What stands behind "--" are the options of Beam. The flags are those of create_pretraining_data, and so are the files:
the same bytes. All machines must be able to read the input and to write the output (a shared folder, or gs://...), and
must have this package installed. A shard is put in order in the memory of one machine, so --num_shards should be large
enough. Needs `pip install 'bert-tf[beam]'`.
"""

from absl import flags

from bert_tf.runtime import extras, program
from bert_tf.runtime.program import say
from data_prep import preparation_flags

flags.adopt_module_key_flags(preparation_flags)


def main(*beam_options: str) -> None:
    """Flags to a pipeline that makes what they say."""
    beam = extras.require("apache_beam", "This program")
    from apache_beam.options.pipeline_options import PipelineOptions

    from data_prep.jobs import beam_stages

    made = preparation_flags.preparation()
    if made.outputs.are_finished():
        say("All files are there already, made with these settings. Remove them to make them anew.")
        return
    pipeline = beam.Pipeline(options=PipelineOptions(list(beam_options)))
    pipeline | beam_stages.PreparePretrainingData(made)
    result = pipeline.run()
    result.wait_until_finish()
    preparation_flags.say_summary(beam_stages.counts_of(result))


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file", "vocab_file"], takes_names=True)


if __name__ == "__main__":
    cli()
