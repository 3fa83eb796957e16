"""Writes the models in older formats that the documentation's commands read, with the vocabulary `vocab.txt`."""

import pathlib

from tests.checkpoints.legacy import writers


def main() -> None:
    vocabulary = pathlib.Path("vocab.txt").resolve()
    sizes = {"vocab_size": len(vocabulary.read_text().splitlines()), "max_position_embeddings": 128}
    config = writers.CONFIG.replace(**sizes)
    weights = {heads: writers.arrays(config, heads) for heads in ((), ("classifier",), ("masked LM",))}
    # The documentation's models have three classes.
    classifier = {name: array[:3] if "output_" in name else array for name, array in weights[("classifier",)].items()}
    for name in ("films_h5", "bert_bin"):
        writers.write_files(pathlib.Path(name), config, "BertForSequenceClassification")
        (pathlib.Path(name) / "vocab.txt").write_text(vocabulary.read_text())
    writers.write_h5("films_h5/tf_model.h5", classifier)
    writers.write_bin("bert_bin/pytorch_model.bin", weights[("masked LM",)])
    writers.write_saved_model("bert_en_uncased", writers.Garden(weights[()], config), vocabulary, True)
    pathlib.Path("export").mkdir()
    writers.write_v1("export/1700000000", classifier, config)
    writers.write_preset(pathlib.Path("films_preset"), classifier, config, "BertTextClassifier")
    pathlib.Path("films_preset/assets/tokenizer/vocabulary.txt").write_text(vocabulary.read_text())


if __name__ == "__main__":
    main()
