"""Makes TF_CONFIG for several workers on this machine."""

import json
import random
import socket

# The system does not assign ports in this range to outgoing connections, so no connection uses a worker's port.
_PORTS = range(20_000, 32_000)


def worker_configs(count: int) -> list[str]:
    """Returns the TF_CONFIG of each worker of a cluster on free ports of this machine."""
    addresses: list[str] = []
    while len(addresses) < count:
        port = random.SystemRandom().choice(_PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # another process is using this port
            continue
        addresses.append(f"127.0.0.1:{port}")
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(count)
    ]
