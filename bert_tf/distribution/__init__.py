"""Who trains together, on which devices.

- `devices`: the devices that a program asks for, and how a batch is divided among them.
- `strategies`: builds the `tf.distribute` strategy, and answers questions about devices, replicas and workers.
- `cluster`: says who trains together by TF_CONFIG, and lets these processes wait for each other.
- `workers`: connects processes that train together, exchanges texts, and says which of them was lost.

`strategies` and `workers` import TensorFlow, the others don't.
"""
