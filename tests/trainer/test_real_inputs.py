"""Data and services of other packages: the packages themselves, where they are installed."""

from __future__ import annotations

import json

import numpy as np
import onnx.parser
import pytest
import small
from ortrain import Trainer
from ortrain.cli import main
from ortrain.trainer import MLflowLogger, WandbLogger

X, Y = small.rows(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_artifacts(tmp_path_factory.mktemp("artifacts"))


def fit(folder, data, **options):
    trainer = Trainer(folder, threads=1)
    return trainer, trainer.fit(data, epochs=2, verbose=False, **options)


def target_of(folder):
    return Trainer(folder, threads=1).inputs.names[1]


def test_a_hugging_face_dataset(folder, tmp_path, capsys):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    columns = {"x": list(X), target_of(folder): Y, "id": [str(i) for i in range(60)]}
    table = datasets.Dataset.from_dict(columns)
    expected = fit(folder, (X, Y), batch_size=16, validation=0.25)[1]
    assert fit(folder, table, batch_size=16, validation=0.25)[1] == expected
    table.save_to_disk(str(tmp_path / "table"))
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "table"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["loss"] == pytest.approx(Trainer(folder).evaluate((X, Y))["loss"])


def test_a_hugging_face_dataset_with_classes_by_name(folder, tmp_path, capsys):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    names = ["a", "b", "c"]

    def evaluated(name, checkpoint, **columns):
        table = datasets.Dataset.from_dict({"id": list(range(60)), "x": list(X), **columns})
        if name == "encoded":
            table = table.cast_column("label", datasets.ClassLabel(names=["c", "b", "a"]))
        table.save_to_disk(str(tmp_path / name))
        options = ["--data", str(tmp_path / name), "--checkpoint", str(checkpoint), "--json"]
        assert main(["evaluate", str(folder), *options, "--target", "label"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found.pop("checkpoint") == str(checkpoint)
        return found

    trainer = Trainer(folder, threads=1)
    trainer.classes = names
    trainer.save(tmp_path / "named.ckpt")
    expected = evaluated("numbers", folder / "checkpoint", label=Y)
    texts = [names[number] for number in Y]
    assert evaluated("text", tmp_path / "named.ckpt", label=texts) == {**expected, "classes": names}
    # The dataset numbers its classes in another order than the model.
    encoded = [["c", "b", "a"].index(text) for text in texts]
    assert evaluated("encoded", tmp_path / "named.ckpt", label=encoded) == {**expected, "classes": names}


def test_a_hugging_face_dataset_of_images(tmp_path, capsys):
    datasets, images = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    kinds = ["cat", "dog", "cat", "cow", "dog", "cow"]
    for number, (image, kind) in enumerate(zip(pixels, kinds, strict=True)):
        (tmp_path / "folder" / kind).mkdir(parents=True, exist_ok=True)
        images.fromarray(image).save(tmp_path / f"folder/{kind}/{number}.png")
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["dog", "cow", "cat"])}
    )
    rows = {"picture": [images.fromarray(image) for image in pixels], "kind": kinds}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "table"))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> reader (float[n, 1, 4, 4] image) => (float[n, 3] scores) '
        "{ rows = Flatten(image)  scores = MatMul(rows, weight) }"
    )
    weight = np.random.default_rng(1).normal(size=(16, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, tmp_path / "model.onnx")

    def ran(*arguments):
        assert main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    ran("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--out", tmp_path / "artifacts")
    ran("train", tmp_path / "artifacts", "--data", tmp_path / "folder")
    asked = ("evaluate", tmp_path / "artifacts", "--metric", "confusion_matrix", "--data")
    found, expected = ran(*asked, tmp_path / "table"), ran(*asked, tmp_path / "folder")
    assert found.pop("loss") == pytest.approx(expected.pop("loss"), rel=1e-6)
    assert found == expected
    assert found["classes"] == ["cat", "cow", "dog"]


class Tensor:
    """What a tensor of PyTorch offers: DLPack and ``numpy()``; it is not an array."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __dlpack__(self, **options):
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()

    def numpy(self):
        return self._values

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype)


class DataLoader:
    """What a ``torch.utils.data.DataLoader`` is to the trainer: a length, and lists of tensors, in a new order each time."""

    def __init__(self, rows: int) -> None:
        self.rows, self.rounds = rows, 0

    def __len__(self):
        return -(-60 // self.rows)

    def __iter__(self):
        self.rounds += 1
        for start in range(0, 60, self.rows):
            yield [Tensor(X[start : start + self.rows]), Tensor(Y[start : start + self.rows])]


def test_what_a_data_loader_yields(folder):
    loader = DataLoader(16)
    trainer, history = fit(folder, loader)
    assert loader.rounds == 2
    assert trainer.step == 8
    assert history == fit(folder, (X, Y), batch_size=16, shuffle=False)[1]


def test_a_data_loader_of_pytorch(folder):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    history = fit(folder, torch.utils.data.DataLoader(rows, batch_size=16))[1]
    assert history == fit(folder, (X, Y), batch_size=16, shuffle=False)[1]


def test_mlflow_has_the_values(folder, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    with mlflow.start_run() as run:
        history = fit(folder, (X, Y), callbacks=[MLflowLogger({"rate": 1e-3})])[1]
    client = mlflow.tracking.MlflowClient()
    assert [entry.value for entry in client.get_metric_history(run.info.run_id, "loss")] == history["loss"]
    assert client.get_run(run.info.run_id).data.params == {"rate": "0.001"}


def test_weights_and_biases_has_the_values(folder, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs Weights & Biases")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    history = fit(folder, (X, Y), callbacks=[WandbLogger(project="p")])[1]
    assert wandb.run.summary["loss"] == history["loss"][-1]
    assert wandb.run.summary["epoch"] == 1
    wandb.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
