"""Train the network of examples/digits where scikit-learn and onnxruntime are not installed.

    python -m tests.replay.digits save DIGITS.npz           where scikit-learn is
    python -m tests.replay.digits train DIGITS.npz FOLDER   where ortrain, numpy and onnx are
    python -m tests.replay.digits check DIGITS.npz FOLDER   where onnxruntime is

`train` writes the exported model and its logits into the folder, and fails if a run that is resumed from a checkpoint ends
with other parameters. `check` fails if onnxruntime computes other logits with that model, or misreads too many digits.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "digits"
sys.path.insert(0, str(EXAMPLE))

EPOCHS, BATCH, RATE, SEED = 4, 32, 3e-3, 1
LOWEST_ACCURACY, LARGEST_DIFFERENCE = 0.95, 1e-4


def save(digits: pathlib.Path) -> None:
    import data

    train, test = data.load()
    np.savez(digits, x=train.images, y=train.labels, test_x=test.images, test_y=test.labels)


def train(digits: pathlib.Path, folder: pathlib.Path) -> None:
    from model import build_model
    from ortrain import artifacts
    from ortrain.api import CheckpointState, Module, Optimizer

    folder.mkdir(parents=True, exist_ok=True)
    model, trainable, frozen = build_model(SEED)
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=["logits"],
    )
    with np.load(digits) as file:
        x, y, test_x, test_y = (file[name] for name in ("x", "y", "test_x", "test_y"))

    def run(
        checkpoint: pathlib.Path, epochs: range, halfway: pathlib.Path | None
    ) -> tuple[Module, CheckpointState]:
        state = CheckpointState.load_checkpoint(checkpoint)
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(RATE)
        for epoch in epochs:
            order = np.random.default_rng([SEED, epoch]).permutation(len(y))
            module.train()
            for start in range(0, len(y) - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                loss, _ = module(x[chosen], y[chosen])
                optimizer.step()
                module.lazy_reset_grad()
            print(f"epoch {epoch}: loss {float(loss):.4f}")
            if halfway and epoch == EPOCHS // 2:
                CheckpointState.save_checkpoint(state, halfway, include_optimizer_state=True)
        return module, state

    halfway = folder / "halfway.ckpt"
    module, state = run(folder / "checkpoint", range(1, EPOCHS + 1), halfway)
    _, resumed = run(halfway, range(EPOCHS // 2 + 1, EPOCHS + 1), None)
    for name, parameter in state.parameters:
        if parameter.data.tobytes() != resumed.parameters[name].data.tobytes():
            sys.exit(f"FAILED: {name} of the run that was resumed differs from that of the uninterrupted run")
    module.eval()
    _, logits = module(test_x, test_y)
    np.save(folder / "logits.npy", logits)
    module.export_model_for_inferencing(folder / "digits.onnx", ["logits"])


def check(digits: pathlib.Path, folder: pathlib.Path) -> None:
    import onnxruntime

    with np.load(digits) as file:
        test_x, test_y = file["test_x"], file["test_y"]
    session = onnxruntime.InferenceSession(folder / "digits.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": test_x})
    difference = float(np.abs(logits - np.load(folder / "logits.npy")).max())
    accuracy = float((logits.argmax(axis=1) == test_y).mean())
    passed = difference < LARGEST_DIFFERENCE and accuracy >= LOWEST_ACCURACY
    print(
        f"{'ok' if passed else 'FAILED'} digits: {accuracy:.2%} of {len(test_y)} held-out digits, logits within "
        f"{difference:.1e} of onnxruntime {onnxruntime.__version__}"
    )
    sys.exit(not passed)


def main() -> None:
    what, *paths = sys.argv[1:]
    {"save": save, "train": train, "check": check}[what](*map(pathlib.Path, paths))


if __name__ == "__main__":
    main()
