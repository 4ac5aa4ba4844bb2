"""The training script of a client, which NVFlare starts: trains on its shard, from the server's parameters as one array."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import nvflare.client as flare
from ortrain import Trainer

sys.path.insert(0, sys.argv[1])  # the folder of the example, wherever NVFlare has copied this script to

from federated import task

PARAMETERS = "numpy_key"  # the name that NVFlare's recipe gives to the one array


def main() -> None:
    """Train in each round."""
    artifacts = Path(sys.argv[2])
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2]) - 1  # site-1 to site-4
    rows, test = task.shard(number), task.digits()[1]
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        trainer = Trainer(
            artifacts,
            learning_rate=task.LEARNING_RATE,
            metrics=["accuracy"],
            seed=received.current_round,
            threads=1,
        )
        trainer.module.copy_buffer_to_parameters(received.params[PARAMETERS].astype(np.float32), True)
        trainer.parameters_changed()
        accuracy = trainer.evaluate(test)["accuracy"]  # of the model of all clients
        trainer.fit(rows, task.LOCAL_EPOCHS, verbose=False)
        parameters = np.asarray(trainer.module.get_contiguous_parameters(True).numpy())
        steps = trainer.step
        flare.send(
            flare.FLModel(
                params={PARAMETERS: parameters},
                metrics={"accuracy": accuracy},
                meta={"NUM_STEPS_CURRENT_ROUND": steps},
            )
        )


if __name__ == "__main__":
    main()
