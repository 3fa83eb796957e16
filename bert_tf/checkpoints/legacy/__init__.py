"""Reads models written by PyTorch, Keras 2, TensorFlow Hub and KerasHub. Code in model files is never executed.

- `torch_file`: PyTorch's weights (`pytorch_model.bin`).
- `keras_h5`: the arrays in HDF5 files of Keras (`tf_model.h5`).
- `saved_model`: the variables of SavedModels, and the settings in their graphs.
- `keras_hub`: KerasHub's presets.
- `keras_names`: translates the names of variables.
- `model_files`: writes the config and the vocabulary of models that do not have these files.
- `run_old_model`: runs a model in its original library, for verification. This is the only module that may run code in
  model files.
"""
