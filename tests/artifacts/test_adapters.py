"""Adapters train as PEFT trains them: gradients, losses and files, recorded in tests/data/lora."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import check_exported
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module
from ortrain.artifacts import LoRA
from ortrain.trainer import Trainer
from recorded import Fixture
from training import Training

Array = np.ndarray[Any, Any]
DATA = pathlib.Path(__file__).parents[1] / "data" / "lora"
CASES = [
    "conv", "conv_bias", "conv_dora", "gpt2", "gpt2_dora", "gpt2_embedding", "gpt2_embedding_dora", "gpt2_rslora", "groups",
    "groups_dora", "line_dora", "llama", "vit", "volume_dora",
    "conv_dropout_dora", "gpt2_dropout", "gpt2_dropout_dora", "groups_dropout_dora",
]  # fmt: skip


def recorded_of(case: str) -> dict[str, Array]:
    with np.load(DATA / f"{case}.npz") as file:
        return {plain(name): file[name] for name in file.files}


def plain(name: str) -> str:
    """The name of a parameter of PEFT in the exported model."""
    for part in ("base_model.model.", ".default", ".base_layer"):
        name = name.replace(part, "")
    return name.removesuffix(".weight") if name.endswith("lora_magnitude_vector.weight") else name


def start_of(case: str) -> LoRA:
    """The adapters before the first step: PEFT's file with other values."""
    found = artifacts.read_peft(DATA / case)
    values = {n.removeprefix("start/"): v for n, v in recorded_of(case).items() if n.startswith("start/")}
    assert set(found.values) == set(values)
    return LoRA(
        r=found.r, alpha=found.alpha, targets=found.targets, bias=found.bias, use_rslora=found.use_rslora,
        use_dora=found.use_dora, dropout=found.dropout, values=values,
    )  # fmt: skip


def training_of(case: str, lora: LoRA, folder: pathlib.Path) -> tuple[Training, artifacts.ArtifactReport]:
    report = artifacts.generate_artifacts(
        DATA / f"{case.partition('_')[0]}.onnx",
        adapter=lora,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    if any(name.startswith("mask/") for name in recorded_of(case)):
        drop_recorded_elements(report.training_model, recorded_of(case), lora.dropout)
    return Training(folder), report


def drop_recorded_elements(file: pathlib.Path, record: dict[str, Array], ratio: float) -> None:
    """Let the Dropout nodes of a training model drop the elements that were dropped in the recorded run."""
    model = onnx.load(file)
    masks, replaced = {}, []
    for node in model.graph.node:
        if node.op_type == "Dropout":
            module = node.name.removesuffix("/lora/dropped")
            kept = record[f"mask/{module}.lora_dropout"].astype(np.float32) / np.float32(1 - ratio)
            if kept.ndim == 3:  # a layer of GPT-2 reads rows
                kept = kept.reshape(-1, kept.shape[-1])
            model.graph.initializer.append(numpy_helper.from_array(kept, f"{module}.mask"))
            masks |= {name: f"{module}.mask" for name in node.output[1:]}
            replaced.append((node, f"{module}.mask"))
    assert len(replaced) == sum(name.startswith("mask/") for name in record)
    replaced += [(node, masks[node.input[1]]) for node in model.graph.node if node.op_type == "DropoutGrad"]
    for node, mask in replaced:
        node.CopyFrom(helper.make_node("Mul", [node.input[0], mask], node.output[:1], node.name))
    onnx.save(model, file)


@pytest.mark.parametrize("case", CASES)
def test_adapters_train_as_those_of_peft(case: str, tmp_path: pathlib.Path) -> None:
    record = recorded_of(case)
    training, report = training_of(case, start_of(case), tmp_path)
    training.optimizer.set_learning_rate(0.05)
    training.loss(record["x"], record["y"])
    gradients = training.gradients()
    expected = {n.removeprefix("grad/"): v for n, v in record.items() if n.startswith("grad/")}
    assert set(gradients) == set(expected) == set(report.trained)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            gradient, expected[name], rtol=1e-4, atol=1e-4 * np.abs(expected[name]).max()
        )
    training.module.lazy_reset_grad()
    losses = [training.step(record["x"], record["y"]) for _ in record["losses"]]
    np.testing.assert_allclose(losses, record["losses"], rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_what_peft_saved_computes_what_it_does_there(case: str, tmp_path: pathlib.Path) -> None:
    record = recorded_of(case)
    training, _ = training_of(case, artifacts.read_peft(DATA / case), tmp_path)
    file = tmp_path / "exported.onnx"
    training.module.export_model_for_inferencing(str(file), ["output"])
    adapted = onnx.load(file)
    np.testing.assert_allclose(run(adapted, record["x"]), record["output"], rtol=1e-4, atol=1e-5)
    together = artifacts.merged(file)
    onnx.save(together, tmp_path / "merged.onnx")
    check_exported(tmp_path / "merged.onnx")
    assert not any("lora" in node.name for node in together.graph.node)
    assert not any("lora" in tensor.name for tensor in together.graph.initializer)
    np.testing.assert_allclose(run(together, record["x"]), record["output"], rtol=1e-4, atol=1e-5)
    base = onnx.load(DATA / f"{case.partition('_')[0]}.onnx")
    assert {node.op_type for node in together.graph.node} <= {node.op_type for node in base.graph.node}


@pytest.mark.parametrize("use_dora", [False, True])
def test_a_weight_that_others_read_is_merged_apart(use_dora: bool, tmp_path: pathlib.Path) -> None:
    """The embedding of Bloom is its output layer too."""
    path = DATA.parent / "exports" / "hf_bloom__dyn20d" / "model.onnx"
    artifacts.generate_artifacts(
        path,
        adapter=LoRA(r=2, targets="Gather", use_dora=use_dora),
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    training, ids = Training(tmp_path), np.arange(24).reshape(2, 12) % 9
    batch = ids, np.ones_like(ids)
    training.optimizer.set_learning_rate(0.05)
    training.step(*batch, np.ones((2, 12, 50), np.float32))
    file = tmp_path / "exported.onnx"
    training.module.export_model_for_inferencing(str(file), ["output"])
    outputs = []
    for model in (onnx.load(path), onnx.load(file), artifacts.merged(file)):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        outputs.append(session.run(None, dict(zip(("input_ids", "attention_mask"), batch, strict=True)))[0])
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    np.testing.assert_allclose(outputs[2], outputs[1], rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_applied_twice_has_one_adapter(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "fc.weight"], ["y"], "second"),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    weight = numpy_helper.from_array(rng.normal(size=(3, 3)).astype(np.float32), "fc.weight")
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = artifacts.generate_artifacts(
        model,
        adapter=LoRA(r=2, alpha=2, targets="fc"),
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    assert report.trained == ["fc.lora_A.weight", "fc.lora_B.weight"]
    training, x = Training(tmp_path), rng.normal(size=(5, 3)).astype(np.float32)
    training.optimizer.set_learning_rate(0.1)
    training.step(x, x)
    a, b = (training.parameters()[name] for name in report.trained)
    together = numpy_helper.to_array(weight) + (b @ a).T
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["y"])
    session = onnxruntime.InferenceSession(artifacts.merged(tmp_path / "exported.onnx").SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ together @ together, rtol=1e-4, atol=1e-5)


def run(model: onnx.ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: Array = session.run(None, {"input": x})[0]
    return found


@pytest.mark.parametrize("case", CASES)
def test_files_of_peft_are_written_as_they_were_read(case: str, tmp_path: pathlib.Path) -> None:
    training, _ = training_of(case, artifacts.read_peft(DATA / case), tmp_path)
    artifacts.write_peft(training.state, tmp_path / "peft", base_model="gpt2")
    safetensors = pytest.importorskip("safetensors.numpy")
    name = "adapter_model.safetensors"
    ours, theirs = (safetensors.load_file(folder / name) for folder in (tmp_path / "peft", DATA / case))
    assert set(ours) == set(theirs)
    assert all((ours[key] == theirs[key]).all() for key in theirs)
    config, given = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (tmp_path / "peft", DATA / case)
    )
    for key in ("peft_type", "r", "lora_alpha", "lora_dropout", "bias", "use_rslora", "use_dora"):
        assert config[key] == given[key]
    assert config["base_model_name_or_path"] == "gpt2"


def names_in(folder: pathlib.Path) -> tuple[set[str], set[str]]:
    """The modules of the tensors in PEFT's files, and of the configuration."""
    tensors = pytest.importorskip("safetensors.numpy").load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    modules = {name.partition(".lora_")[0].removeprefix("base_model.model.") for name in tensors}
    return modules, set(config["target_modules"])


def test_adapters_have_the_names_of_the_network_that_peft_loads(tmp_path: pathlib.Path) -> None:
    """The export is of a module that has GPT-2 as its attribute `m`, as is usual for networks of transformers."""
    training, _ = training_of("gpt2", LoRA(r=2, targets=["c_fc"]), tmp_path / "a")
    expected = {f"transformer.h.{layer}.mlp.c_fc" for layer in range(2)}
    artifacts.write_peft(training.state, tmp_path / "peft")
    assert names_in(tmp_path / "peft") == (expected, expected)
    # The names of files that were read are kept, whether they have the outer module or not.
    artifacts.write_peft(training.state, tmp_path / "outer", prefix="")
    for folder in ("peft", "outer"):
        again, _ = training_of("gpt2", artifacts.read_peft(tmp_path / folder), tmp_path / "b")
        artifacts.write_peft(again.state, tmp_path / "again")
        assert names_in(tmp_path / "again") == names_in(tmp_path / folder)
    assert names_in(tmp_path / "outer")[0] == {f"m.{module}" for module in expected}


def test_weights_of_an_embedding_that_peft_saved_are_those_of_the_base(tmp_path: pathlib.Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    shutil.copytree(DATA / "gpt2_embedding", tmp_path / "peft")
    file = tmp_path / "peft" / "adapter_model.safetensors"
    tensors = safetensors.load_file(file)
    module = next(name.partition(".lora_")[0] for name in tensors if ".lora_embedding_A" in name)
    safetensors.save_file(tensors | {f"{module}.base_layer.weight": np.zeros((3, 2), np.float32)}, file)
    training, _ = training_of("gpt2", artifacts.read_peft(tmp_path / "peft"), tmp_path / "a")
    artifacts.write_peft(training.state, tmp_path / "again")
    assert names_in(tmp_path / "again")[0] == {
        name.partition(".lora_")[0][len("base_model.model.") :] for name in tensors
    }


def test_adapters_of_another_kind_are_refused(tmp_path: pathlib.Path) -> None:
    config = json.loads((DATA / "gpt2" / "adapter_config.json").read_text()) | {"use_qalora": True}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="adapters with use_qalora are not supported"):
        artifacts.read_peft(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"adapter_config\.json"):
        artifacts.read_peft(tmp_path)
    lora = artifacts.read_peft(DATA / "gpt2")
    with pytest.raises(
        ValueError, match=r"target 'm\.transformer\.h\.0\.attn\.c_attn' fits no layer .* has 3: 0 \(Conv\)"
    ):
        training_of("conv", lora, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_stock_onnxruntime_runs_the_base_with_an_adapter(case: str, tmp_path: pathlib.Path) -> None:
    record = recorded_of(case)
    lora = artifacts.read_peft(DATA / case)
    biases = {name for name in lora.values if name.endswith("bias")}
    training, _ = training_of(case, lora, tmp_path)
    file = tmp_path / "exported.onnx"
    training.module.export_model_for_inferencing(str(file), ["output"])
    base = artifacts.with_adapter_inputs(file)
    artifacts.write_onnx_adapter(training.state, tmp_path / "task.onnx_adapter")
    session = onnxruntime.InferenceSession(base.SerializeToString())
    if not biases:  # the export does not have the biases of the base
        without = session.run(["output"], {"input": record["x"]})[0]
        bare = run(onnx.load(DATA / f"{case.partition('_')[0]}.onnx"), record["x"])
        np.testing.assert_allclose(without, bare, rtol=1e-5, atol=1e-6)
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(tmp_path / "task.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(adapter)
    found = session.run(["output"], {"input": record["x"]}, options)[0]
    np.testing.assert_allclose(found, record["output"], rtol=1e-4, atol=1e-5)


def test_the_checkpoint_has_the_adapters_alone_and_names_its_base(tmp_path: pathlib.Path) -> None:
    path = Fixture("encoder").path("model.onnx")
    report = artifacts.generate_artifacts(
        path, adapter=LoRA(r=2), loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=tmp_path
    )
    adapters = report.adapters
    assert adapters is not None
    assert report.optimizer_model is not None
    state = CheckpointState.load_checkpoint(report.checkpoint)
    assert sorted(name for name, _ in state.parameters) == sorted(adapters.parameters)
    assert adapters.base in str(state.properties["ortrain.adapter"])
    model = onnx.load(report.training_model)
    trained = {f"{name}_grad.accumulation.out" for name in adapters.parameters}
    assert {output.name for output in model.graph.output if "_grad" in output.name} == trained
    # Without training, the model computes what the base does: B is zero.
    exported = tmp_path / "exported.onnx"
    Training(tmp_path).module.export_model_for_inferencing(str(exported), ["output"])
    x = Fixture("encoder").batches[0][0]
    np.testing.assert_allclose(run(onnx.load(exported), x), run(onnx.load(path), x), rtol=1e-5, atol=1e-6)
    # "all-linear" leaves the classifier alone.
    assert not any(layer.module == "head" for layer in adapters.layers)
    assert f"{adapters.count:,} elements" in str(report)


def tied_model() -> onnx.ModelProto:
    """Embeddings that are the transposed weights of the layer "fc", and scores with a cap."""
    rng = np.random.default_rng(6)
    weights = {
        "fc.weight": rng.normal(size=(4, 7)),
        "out.weight": rng.normal(size=(7, 5)),
        "cap": np.full((), 3.0),
    }
    nodes = [
        helper.make_node("Transpose", ["fc.weight"], ["table"], "transpose", perm=[1, 0]),
        helper.make_node("Gather", ["table", "ids"], ["rows"], "embedding"),
        helper.make_node("MatMul", ["rows", "fc.weight"], ["hidden"], "fc"),
        helper.make_node("MatMul", ["hidden", "out.weight"], ["free"], "out"),
        helper.make_node("Div", ["free", "cap"], ["small"], "divide"),
        helper.make_node("Tanh", ["small"], ["capped"], "tanh"),
        helper.make_node("Mul", ["capped", "cap"], ["scores"], "multiply"),
    ]
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_layer_whose_result_is_capped_is_the_last_one(tmp_path: pathlib.Path) -> None:
    report = artifacts.generate_artifacts(
        tied_model(),
        adapter=LoRA(r=2),
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    assert [(layer.module, layer.operator) for layer in report.adapters.layers] == [("fc", "MatMul")]


def test_trained_adapters_are_added_to_the_given_model(tmp_path: pathlib.Path) -> None:
    """Only to the layers that were trained: the embedding has the weights of one of them."""
    model = tied_model()
    artifacts.generate_artifacts(
        model,
        adapter=LoRA(r=2, targets="MatMul", use_rslora=True),
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    trainer = Trainer(tmp_path, learning_rate=0.1)
    ids = np.arange(7)
    trainer.fit((ids, ids % 5), epochs=3)
    trainer.export(tmp_path / "trained.onnx")
    made = artifacts.with_weights_of(model, tmp_path / "trained.onnx")
    check_exported(tmp_path / "trained.onnx")
    expected = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(["scores"], {"ids": ids})[0]
    found = onnxruntime.InferenceSession(made.SerializeToString()).run(["scores"], {"ids": ids})[0]
    np.testing.assert_array_equal(found, expected)
    before = onnxruntime.InferenceSession(model.SerializeToString()).run(["scores"], {"ids": ids})[0]
    assert np.abs(found - before).max() > 0.01
    merged = artifacts.merged(made)
    assert [node.op_type for node in merged.graph.node] == [node.op_type for node in model.graph.node]


def test_adapters_of_another_base_are_refused(tmp_path: pathlib.Path) -> None:
    path = Fixture("mlp_adamw").path("model.onnx")
    other = onnx.load(path)
    weight = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(1.5)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, other.graph.initializer[0].name))
    lora = LoRA(r=2, targets="fc1")
    for name, model in (("a", path), ("b", other)):
        artifacts.generate_artifacts(
            model, adapter=lora, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=tmp_path / name
        )
    Trainer(tmp_path / "a", checkpoint=tmp_path / "a" / "checkpoint")
    with pytest.raises(
        ValueError, match=r"of another base than the artifacts in .*: expected the digest \w+ of main_graph"
    ):
        Trainer(tmp_path / "b", checkpoint=tmp_path / "a" / "checkpoint")


def test_a_target_is_a_module_a_pattern_or_an_operator(tmp_path: pathlib.Path) -> None:
    def layers(targets: Any) -> list[str]:
        report = training_of("gpt2", LoRA(r=2, targets=targets), tmp_path)[1]
        assert report.adapters is not None
        return [layer.module.removeprefix("m.transformer.") for layer in report.adapters.layers]

    assert layers("m.transformer.h.0.attn") == ["h.0.attn.c_attn", "h.0.attn.c_proj"]
    assert layers("*.mlp.c_fc") == ["h.0.mlp.c_fc", "h.1.mlp.c_fc"]
    assert layers(["c_attn", "wte"]) == ["wte", "h.0.attn.c_attn", "h.1.attn.c_attn"]
    assert len(layers("Gemm")) == 8
    with pytest.raises(
        ValueError,
        match=r"target 'q_proj' fits no layer .* the model has \d+: m\.transformer\.wte \(Gather\)",
    ):
        layers("q_proj")


def test_modules_that_share_weights_have_adapters_of_their_own(tmp_path: pathlib.Path) -> None:
    """The shared matrix has the name of one of the modules; PEFT names an adapter by its module."""
    model = onnx.load(DATA.parent / "exports" / "hf_gemma2__dyn20" / "model.onnx")
    look_up = next(node for node in model.graph.node if node.input[0] == "m.lm_head.weight")
    product = [node for node in model.graph.node if node.op_type == "MatMul"][-1]
    for node, module in ((look_up, "m.model.embed_tokens"), (product, "m.lm_head")):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", "m", module, node.name]))

    def layers(target: str) -> list[tuple[str, str]]:
        report = artifacts.generate_artifacts(
            model,
            adapter=LoRA(r=2, targets=[target]),
            loss=artifacts.LossType.MSELoss,
            artifact_directory=tmp_path,
        )
        assert report.adapters is not None
        return [(layer.module, layer.operator) for layer in report.adapters.layers]

    assert layers("embed_tokens") == [("m.model.embed_tokens", "Gather")]
    assert layers("lm_head") == [("m.lm_head", "MatMul")]


def test_biases_are_trained_on_request(tmp_path: pathlib.Path) -> None:
    def biases(bias: str) -> tuple[str, ...]:
        report = training_of("vit", LoRA(r=2, targets="q_proj", bias=bias), tmp_path)[1]
        assert report.adapters is not None
        assert set(report.adapters.biases) < set(report.trained)
        return report.adapters.biases

    assert biases("none") == ()
    own = {f"m.vit.layers.{layer}.attention.q_proj.bias" for layer in (0, 1)}
    assert set(biases("lora_only")) == own
    assert own | {"m.vit.layernorm.bias", "m.classifier.bias", "m.vit.layers.1.mlp.fc2.bias"} < set(
        biases("all")
    )


def test_dropout_is_of_train_steps_alone(tmp_path: pathlib.Path) -> None:
    record = recorded_of("conv")
    lora = artifacts.read_peft(DATA / "conv")
    dropping = LoRA(r=lora.r, alpha=lora.alpha, targets=lora.targets, values=lora.values, dropout=0.5)
    training, _ = training_of("conv", dropping, tmp_path / "dropping")
    without, _ = training_of("conv", lora, tmp_path / "without")
    batch = record["x"], record["y"]
    assert training.evaluate(*batch) == without.evaluate(*batch)
    training.module.train()
    assert len({training.loss(*batch) for _ in range(4)}) == 4


@pytest.mark.parametrize("case", ["conv", "gpt2", "groups"])
def test_dora_evaluates_with_dropout_as_without(case: str, tmp_path: pathlib.Path) -> None:
    lora = artifacts.read_peft(DATA / f"{case}_dora")
    record = recorded_of(f"{case}_dora")
    batch, files = (record["x"], record["y"]), []
    for ratio in (0.0, 0.5):
        folder = tmp_path / str(ratio)
        artifacts.generate_artifacts(
            DATA / f"{case}.onnx", adapter=dataclasses.replace(lora, dropout=ratio),
            loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=folder,
        )  # fmt: skip
        files.append(Training(folder))
        files[-1].evaluate(*batch)
        files[-1].module.export_model_for_inferencing(str(folder / "exported.onnx"), ["output"])
    without, dropping = files
    assert dropping.evaluate(*batch) == without.evaluate(*batch)
    models = [onnx.load(tmp_path / ratio / "exported.onnx") for ratio in ("0.0", "0.5")]
    nodes = [
        [node.op_type for node in model.graph.node if node.op_type not in ("Constant", "Dropout")]
        for model in models
    ]
    assert nodes[0] == nodes[1]
    weights = [
        {tensor.name: numpy_helper.to_array(tensor) for tensor in artifacts.merged(model).graph.initializer}
        for model in models
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        np.testing.assert_array_equal(weight, weights[1][name])
    assert len({dropping.step(*batch) for _ in range(4)}) == 4


def quantized(kind: str) -> tuple[onnx.ModelProto, Array]:
    """A model of one product with quantized weights, and these weights as numbers, [inputs, outputs]."""
    rng = np.random.default_rng(0)
    if kind == "DequantizeLinear":
        weight = rng.integers(-100, 100, (32, 5)).astype(np.int8)
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["float"], "dequantize"),
            helper.make_node("MatMul", ["x", "float"], ["y"], "fc"),
        ]
        tensors = {"w": weight, "s": np.array(0.02, np.float32)}
        numbers = weight * 0.02
    else:
        codes = rng.integers(0, 16, (5, 32)).astype(np.uint8)  # two blocks of 16 in each row
        scales = rng.uniform(0.05, 0.1, (5, 2)).astype(np.float32)
        sizes = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
        nodes = [
            helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], "fc", domain="com.microsoft", **sizes)
        ]
        tensors = {"w": (codes[:, ::2] | codes[:, 1::2] << 4).reshape(5, 2, 8), "s": scales.ravel()}
        numbers = ((codes.astype(np.float64) - 8) * scales.repeat(16, axis=1)).T
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n", 32])],
        [helper.make_tensor_value_info("y", 1, ["n", 5])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), numbers


@pytest.mark.parametrize("kind", ["DequantizeLinear", "MatMulNBits"])
def test_quantized_weights_take_adapters(kind: str, tmp_path: pathlib.Path) -> None:
    model, weight = quantized(kind)
    report = artifacts.generate_artifacts(
        model, adapter=LoRA(r=2, alpha=4, targets="fc"), loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD, artifact_directory=tmp_path,
    )  # fmt: skip
    training, rng = Training(tmp_path), np.random.default_rng(1)
    training.optimizer.set_learning_rate(0.1)
    x, y = rng.normal(size=(8, 32)).astype(np.float32), rng.normal(size=(8, 5)).astype(np.float32)
    a, b = (training.parameters()[name].astype(np.float64) for name in report.trained)
    for _ in range(5):  # y = x (W + s (B A)ᵀ), in double precision
        error = x @ (weight + 2 * (b @ a).T) - y
        np.testing.assert_allclose(training.step(x, y), (error**2).mean(), rtol=1e-5)
        slope = 2 * 2 * error.T @ x / error.size
        a, b = a - 0.1 * b.T @ slope, b - 0.1 * slope @ a.T
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["y"])
    with pytest.raises(
        ValueError, match="cannot merge the adapter of fc: expected weights in an initializer of float"
    ):
        artifacts.merged(tmp_path / "exported.onnx")


def test_a_head_and_adapters_are_trained_together(tmp_path: pathlib.Path) -> None:
    report = artifacts.generate_artifacts(
        Fixture("encoder").path("model.onnx"),
        adapter=LoRA(r=2),
        head=artifacts.Head(4),
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    assert report.head is not None
    assert set(report.trained) == {*report.adapters.parameters, *report.head.parameters}
    x, y = Fixture("encoder").batches[0]
    training = Training(tmp_path)
    losses = [training.step(x, y % 4) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_model_with_adapters_is_trained_like_others(tmp_path: pathlib.Path) -> None:
    """Its adapters are layers, which can still be added to the weights. It takes no second adapters."""
    _, report = training_of("vit", LoRA(r=2), tmp_path / "a")
    x = recorded_of("vit")["x"]
    y = np.arange(len(x)) % 4
    first = Trainer(tmp_path / "a", learning_rate=1e-2, threads=1)
    first.fit((x, y), epochs=2, verbose=False)
    adapted = tmp_path / "adapted.onnx"
    first.export(adapted)
    for name, settings in (("all", {}), ("head", {"head": artifacts.Head(4)})):
        artifacts.generate_artifacts(
            adapted,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path / name,
            **settings,
        )
        trainer = Trainer(tmp_path / name, threads=1)
        trainer.fit((x, y), epochs=1, verbose=False)
        trainer.export(tmp_path / "apart.onnx", ["output"])
        onnx.save(artifacts.merged(tmp_path / "apart.onnx"), tmp_path / "merged.onnx")
        apart, merged = (
            onnxruntime.InferenceSession(tmp_path / f"{form}.onnx").run(None, {"input": x})[0]
            for form in ("apart", "merged")
        )
        np.testing.assert_allclose(merged, apart, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"expected a model without adapters, found adapters of .*--adapters merged"
    ):
        artifacts.generate_artifacts(
            adapted,
            adapter=LoRA(r=2),
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=tmp_path / "b",
        )
    quantized = artifacts.quantize_weights(adapted, tmp_path / "quantized.onnx", block_size=16)
    assert not [layer for layer in quantized.layers if "lora" in layer.module]
    assert any("it belongs to an adapter" in reason for reason in quantized.skipped)
    assert report.adapters is not None
    exact = artifacts.merged(tmp_path / "quantized.onnx", dequantize=True)
    assert not [node for node in exact.graph.node if "lora" in node.name]


def test_a_merged_model_keeps_what_graphs_inside_nodes_read(tmp_path: pathlib.Path) -> None:
    """Here tables that a Loop looks up."""
    path = DATA.parents[1] / "models" / "data" / "dlrm_bags" / "dynamo_20.onnx"
    report = artifacts.generate_artifacts(
        path, adapter=LoRA(r=2), loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(report.checkpoint)
    module = Module(report.training_model, state, report.eval_model)
    outputs = [output.name for output in onnx.load(path).graph.output]
    module.export_model_for_inferencing(tmp_path / "apart.onnx", outputs)
    onnx.save(artifacts.merged(tmp_path / "apart.onnx"), tmp_path / "merged.onnx")
    sessions = [onnxruntime.InferenceSession(p) for p in (path, tmp_path / "merged.onnx")]
    rng = np.random.default_rng(0)
    feeds = {
        "dense": rng.normal(size=(3, 6)).astype(np.float32),
        "categories": rng.integers(0, 10, (3, 3, 4)),
    }
    np.testing.assert_allclose(*(session.run(None, feeds)[0] for session in sessions), atol=1e-6)


def test_settings_that_are_no_adapters_are_rejected(tmp_path: pathlib.Path) -> None:
    for settings, kind, message in (
        ({"r": "8"}, TypeError, "expected a whole number as rank r, found '8'"),
        ({"r": 8.0}, TypeError, "expected a whole number as rank r, found 8.0"),
        ({"r": 0}, ValueError, "expected a rank r of 1 or more, found 0"),
        ({"alpha": "16"}, TypeError, "expected a number as alpha, found '16'"),
        ({"alpha": float("nan")}, ValueError, "expected a finite alpha, found nan"),
        ({"dropout": None}, TypeError, "expected a number as dropout, found None"),
        ({"targets": []}, ValueError, "expected at least one target, found none"),
        ({"targets": [1]}, TypeError, "LoRA.targets must be a list of names"),
    ):
        with pytest.raises(kind, match=message):
            LoRA(**settings)  # type: ignore[arg-type]
    model = Fixture("mlp_adamw").path("model.onnx")
    with pytest.raises(TypeError, match=r"adapter: expected LoRA\(...\) or None, found 'lora'"):
        artifacts.generate_artifacts(model, adapter="lora", artifact_directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"head: expected Head\(...\) or None, found 4"):
        artifacts.generate_artifacts(model, head=4, artifact_directory=tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
