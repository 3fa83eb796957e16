"""Named entities and other tags of words, by fine-tuning and by features (paper, section 5.3).

    tagging_task         the task for fine-tuning: features, scores, prediction files
    conll                reads and writes files with columns
    layouts              finds the columns of words and tags
    tagged_tables        reads tables: lists of words and tags, and texts with spans of characters
    annotations          reads character spans of annotation programs
    schemes              the tagging schemes: IOB1, IOB2, BIOES, BILOU and plain tags
    windows              the model's input windows of text
    by_features          the task for feature-based tagging, which computes features with a frozen encoder
    feature_tagger       the model for feature-based tagging: a BiLSTM and an output layer

`tasks.registry` and the programs import this package. It imports lower layers, and common modules of `tasks`,
such as `metrics` and `tables`.
"""
