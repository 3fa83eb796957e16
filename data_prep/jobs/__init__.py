"""Data preparation by many processes and machines.

    workers           runs the jobs of a stage once each, in processes
    claims            which jobs are whose, where several tasks share the work through a folder
    corpus_stage      what stages that read text have in common
    stages            the stages: tokenize, plan, write, assemble, publish
    cleaning_stages   leave documents out
    merge_stage       merges the sorted files of the planned examples, if there are many
    preparation       runs the stages from text to shards
    word_counts       the words of a corpus, for a vocabulary
    beam_documents    tokenize as an Apache Beam transform
    beam_stages       plan and write as Apache Beam transforms

May import the folders `corpus` and `examples`.
"""
