"""Data preparation by many processes and machines.

    workers        runs the jobs of a stage once each, in processes; claims work in a folder
    stages         the three stages: tokenize, plan, write
    preparation    runs the stages from text to shards
    word_counts    the words of a corpus, for a vocabulary
    beam_stages    tokenize, plan and write as Apache Beam transforms

May import the folders `corpus` and `examples`.
"""
