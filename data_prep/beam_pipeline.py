"""Makes pre-training data on many machines, with Apache Beam (Spark, Flink, Dataflow, or its local runner).

    python -m data_prep.beam_pipeline --input_file=... --output_file=... --vocab_file=... --num_shards=64 \
        -- --runner=FlinkRunner --flink_master=...

The arguments after "--" are Beam's. The flags are those of create_pretraining_data, and the files are the same, byte
for byte. All machines must have this package, and access to the input and output (a shared folder, or gs://...). One
machine sorts a shard in its memory, so choose a sufficient --num_shards. Needs
`pip install '.[beam]'`.
"""

from absl import flags

from bert_tf.runtime import extras, program
from data_prep import preparation_flags

flags.adopt_module_key_flags(preparation_flags)


def main(*beam_options: str) -> None:
    """Runs the pipeline that the flags describe."""
    beam = extras.require("apache_beam", "This program")
    from apache_beam.options.pipeline_options import PipelineOptions

    from data_prep.jobs import beam_documents, beam_stages

    config = preparation_flags.preparation_config()
    if config.shards.are_finished():
        preparation_flags.say_already_finished(config)
        return
    pipeline = beam.Pipeline(options=PipelineOptions(list(beam_options)))
    pipeline | beam_stages.PreparePretrainingData(config)
    result = pipeline.run()
    result.wait_until_finish()
    preparation_flags.say_summary(beam_documents.counts_of(result), config.shards)


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file", "vocab_file"], takes_names=True)


if __name__ == "__main__":
    cli()
