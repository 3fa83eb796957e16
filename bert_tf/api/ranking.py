"""Ranking of texts for a query, with a model of pairs."""

from typing import Any

import numpy as np

from bert_tf.api import in_memory
from bert_tf.api.base import Estimator
from bert_tf.checkpoints import run_record
from bert_tf.runtime.errors import InputError, first_of, require_whole
from bert_tf.tasks.sentences.own_files import reads_pairs


class Ranker(Estimator):
    """The base of `Classifier` and `Regressor`, whose models can score pairs of a query and a text."""

    def rank(
        self, query: str, texts: Any, *, label: Any = None, top_k: int | None = None, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """Returns the scores of texts for a query, best first, like `CrossEncoder.rank` of sentence-transformers.

        The score is the predicted number or, for classes, the probability of `label`.

        Args:
          query: the first text of each pair.
          texts: the second texts of the pairs.
          label: the class whose probability is the score. Default for the classes 0 and 1: 1; for False and True: True.
          top_k: the largest number of results. Default: all.
          return_documents: whether the results contain the texts.

        Returns:
          For each text, a dictionary with its index in `texts` ("corpus_id"), its "score" and, with `return_documents`,
          its "text". Results with the same score have the order of `texts`.

        Raises:
          InputError: if there is no trained model, the model was trained on single texts or several labels, or an
            argument can't be used.
        """
        self._check_usable()
        run = run_record.recorded(self._trained_checkpoint or self._tuned_before.path)
        if self._problem == "multi_label" or (run and not reads_pairs(run)):
            kind = "several labels" if self._problem == "multi_label" else "single texts"
            raise InputError(f"the model was trained on {kind}. Use a model of pairs with one label each.", "rank()")
        if top_k is not None:
            require_whole("top_k", top_k, 1)
        classes = list(self._given_labels())  # empty for a regression
        if label is None and classes in (["0", "1"], ["False", "True"]):
            label = classes[1]
        name = None if label is None else in_memory.class_name(label)
        if name not in (classes or [None]):
            advice = f"Pass the class whose probability is the score: {first_of(classes)}." if classes else "Omit it."
            raise InputError(f"label is {label!r}. {advice}", "label")
        pairs = [(in_memory.text(query, "query"), text) for text in in_memory.as_list(texts, "texts")]
        if not pairs:
            return []
        outputs = self._predicted(pairs, batch_size=8)[-1]
        scores = outputs["probabilities"][:, classes.index(name)] if classes else outputs["score"]
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        texts_of = {number: {"text": pairs[number][1]} for number in order} if return_documents else {}
        return [{"corpus_id": number, "score": float(scores[number]), **texts_of.get(number, {})} for number in order]
