"""Train the digits with four clients on NVFlare's simulator, with its recipe of federated averaging.

    python examples/federated/nvflare/job.py --out build/nvflare

The parameters travel as one array. The program ends with status 1 if the held-out accuracy is more than a point below that of
training in one place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv
from ortrain import Trainer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from federated import task  # noqa: E402


def main() -> int:
    """Run the job; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/nvflare"), help="folder of the results")
    out = parser.parse_args().out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.environ["ORTRAIN_FEDERATED"] = str(out)
    task.prepare(out)
    trainer = Trainer(out / "artifacts", metrics=["accuracy"], threads=1)
    start = np.asarray(trainer.module.get_contiguous_parameters(True).numpy())
    recipe = NumpyFedAvgRecipe(
        name="digits",
        model=start.tolist(),
        min_clients=task.CLIENTS,
        num_rounds=task.ROUNDS,
        train_script=str(HERE / "client.py"),
        train_args=f"{HERE.parent} {out / 'artifacts'}",
    )
    began = time.monotonic()
    recipe.execute(SimEnv(num_clients=task.CLIENTS, num_threads=2, workspace_root=str(out)))
    seconds = time.monotonic() - began
    [saved] = (out / "digits").rglob("*.npy")
    parameters = np.load(saved).astype(np.float32)
    trainer.module.copy_buffer_to_parameters(parameters, True)
    trainer.parameters_changed()
    trainer.export(out / "global.onnx")
    federated, central = float(trainer.evaluate(task.digits()[1])["accuracy"]), task.central()
    print(
        f"held-out accuracy: {federated:.2%} federated, {central:.2%} in one place; {seconds:.0f} s; "
        f"model: {out / 'global.onnx'}"
    )
    return 0 if federated >= central - 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
