"""Makes pre-training data on many machines, with Apache Beam (Spark, Flink, Dataflow, or its local runner).

    python -m data_prep.beam_pipeline --input_file=... --output_file=... --vocab_file=... --num_shards=64 \
        -- --runner=FlinkRunner --flink_master=...

What stands behind "--" are the options of Beam. The flags are those of create_pretraining_data, and so are the files:
the same bytes. All machines must be able to read the input and to write the output (a shared folder, or gs://...), and
must have this package installed. A shard is put in order in the memory of one machine, so --num_shards should be large
enough. Needs `pip install -r requirements-beam.txt`.
"""

from absl import flags

from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from data_prep import preparation_flags


def main(*beam_options: str) -> None:
    """Flags to a pipeline that makes what they say."""
    try:
        import apache_beam
        from apache_beam.options.pipeline_options import PipelineOptions

        from data_prep.jobs import beam_stages
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise InputError(
            "Apache Beam is needed, but not installed. Install it with `pip install -r requirements-beam.txt`."
        ) from None
    made = preparation_flags.preparation()
    if made.outputs.are_finished():
        say("All files are there already, made with these settings. Remove them to make them anew.")
        return
    pipeline = apache_beam.Pipeline(options=PipelineOptions(list(beam_options)))
    pipeline | beam_stages.PreparePretrainingData(made)
    result = pipeline.run()
    result.wait_until_finish()
    preparation_flags.say_summary(beam_stages.counts_of(result))


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])
    program.run(main, takes_names=True)
