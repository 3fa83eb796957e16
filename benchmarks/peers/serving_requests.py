"""Contenders of benchmarks/serving.py: Hugging Face's tokenizer with BERT in PyTorch or ONNX Runtime.

benchmarks/serving.py runs this script with another Python interpreter, which does not need this project:

    python benchmarks/peers/serving_requests.py KIND CONFIG_JSON VOCAB_FILE THREADS DIRECTORY
"""

import importlib.util
import json
import sys
import time

NEEDED = {"torch": ("torch", "transformers"), "onnxruntime": ("torch", "transformers", "onnx", "onnxruntime")}
LENGTH = 128


def main():
    kind, settings, vocab_file, threads, directory = sys.argv[1:]
    runtime, dtype = kind.split()
    missing = [name for name in NEEDED[runtime] if importlib.util.find_spec(name) is None]
    if missing:
        print(json.dumps({"missing": f"this Python has no {', '.join(missing)}"}), flush=True)
        return
    start = time.perf_counter()
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    imported = time.perf_counter()
    torch.set_num_threads(int(threads))
    tokenizer = BertTokenizerFast(vocab_file, do_lower_case=True)
    torch.manual_seed(0)
    config = BertConfig(**json.loads(settings), num_labels=2)
    model = BertForSequenceClassification(config).eval().to(getattr(torch, dtype))
    if runtime == "onnxruntime":
        predict = onnx_session(model, int(threads), f"{directory}/model.onnx")
    else:

        def predict(inputs):
            return model(**inputs).logits.float().softmax(-1)

    def answer(pairs):
        texts = [list(column) for column in zip(*pairs, strict=True)]
        with torch.inference_mode():
            predict(tokenizer(*texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))

    loaded = time.perf_counter()
    answer([("a", "b")])
    answered = time.perf_counter()
    times = {"import": imported - start, "load": loaded - imported, "first answer": answered - loaded}
    print(json.dumps(times), flush=True)
    for line in sys.stdin:
        seconds = []
        for batch in json.loads(line)["batches"]:
            start = time.perf_counter()
            answer(batch)
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


def onnx_session(model, threads, path):
    """Returns a function that predicts with the same weights in ONNX Runtime."""
    import onnxruntime
    import torch

    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = torch.ones([1, 4], dtype=torch.int64)
    torch.onnx.export(
        model,
        (example, example, example * 0),
        path,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
        opset_version=17,
        dynamo=False,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def predict(inputs):
        (logits,) = session.run(None, {name: inputs[name].numpy() for name in names})
        return torch.from_numpy(logits).softmax(-1)

    return predict


if __name__ == "__main__":
    main()
