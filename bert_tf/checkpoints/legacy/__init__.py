"""Reads models that other libraries of the TensorFlow years wrote. Nothing that their files contain is executed.

- `torch_file`: PyTorch's weights (`pytorch_model.bin`).
- `keras_h5`: the arrays in HDF5 files of Keras (`tf_model.h5`).
- `saved_model`: the variables of SavedModels, and the settings in their graphs.
- `keras_hub`: KerasHub's presets.
- `keras_names`: translates the names of variables.
- `model_files`: writes the config and the vocabulary of models that do not have these files.
"""
