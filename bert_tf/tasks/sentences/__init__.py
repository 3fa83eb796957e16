"""Tasks that classify or score sentences, pairs and documents, and multiple choice.

sentence_task     labels, scores and prediction files of all sentence tasks
glue              GLUE's nine tasks and XNLI
glue_benchmark    several GLUE tasks in one run, the row of the paper's Table 1, the file for the GLUE server
own_files         classification or regression of your own data
text_reader       texts and labels in files with named columns, or in memory
multiple_choice   SWAG, CODAH, and your own prompts with endings
similarity        training of sentence vectors
examples          examples of sentence tasks, and the base class of readers
soft_labels       probabilities as labels, for distillation
"""
