"""Sends requests from many clients to an exported model in a server process, and measures latency and memory.

    python -m benchmarks.serving_load --model=exported/qnli --minutes=10

The server is only for this test. It has the REST interface of TensorFlow Serving, and runs the code of
`bert_tf.predict`. The client sends three types of requests:

- About 70% are valid, with texts of 1 to 600 words in all formats of docs/howto/serve.md.
- About 20% are hostile: invalid JSON, wrong types, strange or very long texts.
- About 10% are cancelled after one half was sent, or before the answer.

Every request that is not cancelled must get predictions or an error message. Otherwise, or if the server ends, the exit
status is 1. The test takes half a minute to start, and then --minutes.
"""

import argparse
import collections
import dataclasses
import http.client
import http.server
import json
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import psutil

from benchmarks.common import Peer, command
from bert_tf import export
from bert_tf.runtime import json_files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.serving.saved_model import ExportedModel

# The memory at the end is compared with the memory after this fraction of the time.
_WARM_UP = 0.2
_MAX_BODY, _MAX_INSTANCES = 1 << 24, 1000
_SECONDS_TO_SEND = 30.0
_PATH = "/v1/models/model:predict"
_STRANGE_TEXTS = ("", " ", "\0\uffff", "\ud800", "\u202eabc\u0130\ufb01", "天地" * 500, "a" * 100_000, "(" * 20_000)
_NOT_REQUESTS = (
    *(b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe\x00", b"[" * 100_000),
    *(b'{"instances": %s}' % value for value in (b"5", b"[]", b"[5, null, {}]", b'[[["a"]]]', b'[{"other": "a"}]')),
    *(b'{"instances": %s}' % value for value in (b"9" * 6000, b'["%s"]' % (b"\0" * 50), b'["a", "b", {"text_a": 1}]')),
    *(b'{"inputs": %s}' % value for value in (b"1e999", b"{}", b'{"text_a": ["a"], "text_b": []}')),
    *(b'{"signature_name": %s, "instances": ["a"]}' % value for value in (b"[]", b'"none"', b"null")),
)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one client. `models` maps names to signatures. Only a few requests are computed at the same time."""

    protocol_version = "HTTP/1.1"
    timeout = _SECONDS_TO_SEND  # seconds to wait for the rest of a request
    models: Mapping[str, ExportedModel]
    slots = threading.Semaphore(os.cpu_count() or 1)

    def do_POST(self) -> None:
        """Sends predictions or an error as JSON."""
        status = 200
        try:
            answer = self.predict(self._body())
        except InputError as error:
            status, answer = 400, {"error": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY:
            self.close_connection = True
            raise InputError(f"Content-Length is {length!r}. Use a number up to {_MAX_BODY}.")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionError
        return body

    def predict(self, body: bytes) -> dict[str, Any]:
        """Returns the answer to a request with rows ("instances") or columns ("inputs").

        Raises:
          InputError: if the request is invalid.
        """
        request = json_files.parse(body.decode("utf-8", "ignore"))
        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise InputError('the request is invalid. Send a JSON object with either "instances" or "inputs".')
        name = request.get("signature_name", "serving_default")
        model = self.models.get(name) if isinstance(name, str) else None
        if model is None:
            raise InputError(f"signature_name is {str(name)[:60]!r}. Use one of {', '.join(self.models)}.")
        rows = request["instances"] if "instances" in request else _rows(request["inputs"], model)
        if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_INSTANCES:
            raise InputError(f"the examples are invalid. Send a list of 1 to {_MAX_INSTANCES} examples.")
        with self.slots:
            predictions = model.predict(rows)
        if "instances" in request:
            return {"predictions": predictions}
        return {"outputs": {name: [row[name] for row in predictions] for name in predictions[0]}}

    def log_message(self, format: str, *arguments: object) -> None:
        """Does not log requests."""


def _rows(columns: object, model: ExportedModel) -> object:
    """Returns the examples of a request with columns. For a model with one input, the name can be omitted."""
    if not isinstance(columns, dict):
        return columns
    lists = list(columns.values())
    if not lists or not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        raise InputError(f'"inputs" is invalid. Send lists of the same length for {model.inputs}.')
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


class Server(http.server.ThreadingHTTPServer):
    """A server with a thread for each client."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that have disconnected."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def start_server(models: Mapping[str, ExportedModel]) -> Server:
    """Starts a server for the signatures of a model, in threads of this process, on a free port."""
    server = Server(("127.0.0.1", 0), type("HandlerOfModel", (Handler,), {"models": models}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@dataclasses.dataclass
class Results:
    """The results of all clients.

    Attributes:
      seconds: type of request -> the time until each answer.
      cancelled: the number of requests that were cancelled.
      wrong: descriptions of wrong answers.
    """

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    cancelled: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def run_client(port: int, inputs: list[str], dice: random.Random, end: float, results: Results) -> None:
    """Sends one request after the other until `end`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while time.monotonic() < end:
        kind = dice.choices(("valid", "hostile", "cancelled"), (7, 2, 1))[0]
        body = hostile_body(inputs, dice) if kind == "hostile" else valid_body(inputs, dice)
        if kind == "cancelled":
            _cancel(port, body, dice)
            results.cancelled += 1
            continue
        begin = time.monotonic()
        try:
            connection.request("POST", _PATH, body)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            results.wrong.append(f"{type(error).__name__} {error} for {body[:200]!r}")
            connection.close()
            continue
        results.seconds[kind].append(time.monotonic() - begin)
        is_answer = response.status == 200 and answer.keys() & {"predictions", "outputs"}
        is_error = kind == "hostile" and response.status == 400 and answer.get("error")
        if not (is_answer or is_error):
            results.wrong.append(f"{response.status} {str(answer)[:200]} for {body[:200]!r}")


def valid_body(inputs: list[str], dice: random.Random) -> bytes:
    """Returns a request with one to four examples, in one of the formats of docs/howto/serve.md."""

    def text() -> str:
        words = int(600 ** dice.random())  # few long texts, many short ones
        return " ".join("".join(dice.choices("abcdefghij é天", k=dice.randint(1, 9))) for _ in range(words)) or "a"

    rows = [{name: text() for name in inputs} for _ in range(dice.randint(1, 4))]
    form = dice.randrange(10)
    if form == 0:
        length = dice.randint(2, 16)
        ids = {"input_ids": [1] * length, "input_mask": [1] * length, "segment_ids": [0] * length}
        return json.dumps({"signature_name": "token_ids", "instances": [ids]}).encode()
    if form <= 3:
        return json.dumps({"inputs": {name: [row[name] for row in rows] for name in inputs}}).encode()
    return json.dumps({"instances": [row[inputs[0]] for row in rows] if len(inputs) == 1 else rows}).encode()


def hostile_body(inputs: list[str], dice: random.Random) -> bytes:
    """Returns an invalid or damaged request, or a request with strange texts."""
    kind = dice.randrange(3)
    if kind == 0:
        return dice.choice(_NOT_REQUESTS)
    body = json.dumps({"instances": [{name: dice.choice(_STRANGE_TEXTS) for name in inputs}]}).encode()
    if kind == 1:
        return body
    at = dice.randrange(len(body))
    return body[:at] + dice.randbytes(dice.randint(0, 3)) + body[at + dice.randint(0, 3) :]


def _cancel(port: int, body: bytes, dice: random.Random) -> None:
    """Sends a request or a part of it, and closes the connection before the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.putrequest("POST", _PATH)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[: dice.choice((0, len(body) // 2, len(body)))])
    time.sleep(dice.choice((0, 0.01)))
    connection.close()


def send_load(port: int, inputs: list[str], clients: int, seconds: float, seed: int) -> Results:
    """Sends requests from several clients at the same time."""
    results, end = Results(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=run_client, args=(port, inputs, random.Random(f"{seed} {number}"), end, results))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of an exported model that reads texts")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration of the load")
    parser.add_argument("--clients", type=int, default=32, help="number of clients; each sends one request at a time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the requests")
    parser.add_argument("--serve", action="store_true", help="only serve, and print the port")
    given = parser.parse_args()
    if given.serve:
        models = {name: export.load(given.model, name) for name in export.load(given.model).signatures}
        server = start_server(models)
        print(json.dumps([server.server_address[1], models["serving_default"].inputs]), flush=True)
        sys.stdin.read()  # waits until the other process ends
        return
    with Peer([*command("-m", "benchmarks.serving_load", model=os.path.abspath(given.model)), "--serve"]) as server:
        port, inputs = server.read()
        send_load(port, inputs, 1, 3.0, given.seed)  # traces the graphs
        memory, seconds = [], 60 * given.minutes

        def measure_memory() -> None:
            memory.append(psutil.Process(server.process.pid).memory_info().rss / 1e6)

        timer = threading.Timer(_WARM_UP * seconds, measure_memory)
        timer.start()
        results = send_load(port, inputs, given.clients, seconds, given.seed)
        timer.join()
        has_ended = server.process.poll() is not None
        if not has_ended:
            measure_memory()
    rows = [
        {"requests": kind, "answered": len(times), **{f"p{p} (ms)": 1e3 * np.percentile(times, p) for p in (50, 99)}}
        for kind, times in sorted(results.seconds.items(), reverse=True)
    ]
    print(reporting.table(rows))
    print(f"{results.cancelled} requests were cancelled by their clients. Wrong answers: {len(results.wrong)}.")
    print("Memory of the server after the warm-up and at the end (MB):", *(f"{size:.0f}" for size in memory))
    for line in results.wrong[:20]:
        print(line)
    if has_ended or results.wrong:
        sys.exit("The server ended before the test. See its messages above." if has_ended else 1)


if __name__ == "__main__":
    main()
