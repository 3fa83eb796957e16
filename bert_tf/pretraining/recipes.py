"""The objectives of pre-training, and settings for complete runs as flag values of `run_pretraining.py`."""

from typing import Literal, get_args

# Masked LM and next sentence prediction; masked LM only; a left-to-right LM (paper, Table 5).
Objective = Literal["mlm_nsp", "mlm", "ltr"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

# The paper's pre-training (section 3.1 and appendix A.2). The defaults of the other flags are the paper's too.
_PAPER = {"train_batch_size": 256, "num_train_steps": 1_000_000, "num_warmup_steps": 10_000, "learning_rate": 1e-4}
# BERT_LARGE in 8,599 steps. Batches and steps are from the LAMB paper (You et al., 2020). Learning rates, warm-up
# (0.2843 of phase 1, 0.128 of phase 2) and the power of the decay are from NVIDIA's reproduction (DeepLearningExamples,
# PyTorch). It also keeps the optimizer's moments between the phases.
_LAMB_STEPS, _LAMB_SECOND_STEPS = 8599, 1561
_LAMB = {
    "model_size": "large",
    "optimizer": "lamb",
    "num_train_steps": _LAMB_STEPS,
    "train_batch_size": 65536,
    "learning_rate": 6e-3,
    "num_warmup_steps": round(0.2843 * (_LAMB_STEPS - _LAMB_SECOND_STEPS)),
    "lr_decay_power": 0.5,
    "second_phase_proportion": _LAMB_SECOND_STEPS / _LAMB_STEPS,
    "second_train_batch_size": 32768,
    "second_learning_rate": 4e-3,
    "second_num_warmup_steps": round(0.128 * _LAMB_SECOND_STEPS),
}
# The best settings for one hour on one CPU core, according to `experiments/recipes.toml`. At first, a model predicts
# only frequent tokens. Short sequences, small batches, no dropout and large initial values shorten this time for small
# models.
_ONE_HOUR = {
    "model_size": "tiny",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
    "max_seq_length": 16,
    "max_predictions_per_seq": 3,
    "second_max_seq_length": 64,
    "second_max_predictions_per_seq": 10,
    "second_phase_proportion": 0.2,
    "train_batch_size": 32,
    "learning_rate": 1e-3,
    "bias_correction": True,
    "num_train_steps": 45_000,
    "num_warmup_steps": 1000,
}
RECIPES = {f"bert_{size}": {"model_size": size, **_PAPER} for size in ("base", "large")}
RECIPES |= {"paper": _PAPER, "lamb_64k": _LAMB, "one_hour": _ONE_HOUR}
