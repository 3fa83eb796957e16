"""Workers that are processes of this machine."""

import json
import socket


def worker_configs(count: int) -> list[str]:
    """Returns the TF_CONFIG of each worker of a cluster on free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(count)
    ]
