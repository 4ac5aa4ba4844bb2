"""Adapters outside of checkpoints: files of PEFT, ``.onnx_adapter``, and models with the adapters merged or as inputs."""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.reading import explained, open_file
from ortrain._files.weights import array_of, load_with_weights_apart
from ortrain._files.writing import write_files
from ortrain._graph.initializers import add_initializer, free_name, remove_initializers
from ortrain._ortrain import OrtValue
from ortrain.adapters import AdapterFormat
from ortrain.api import CheckpointState
from ortrain.artifacts.graph.adapters import (
    BASE,
    KEY,
    AdaptedLayer,
    Adapters,
    LoRA,
    adapters_in,
    adapters_of,
    is_added,
    sums_of,
)
from ortrain.artifacts.graph.block_codes import decode, encode
from ortrain.artifacts.graph.fused import refuse, replace_nodes
from ortrain.artifacts.graph.quantized import Quantization, QuantizedLayer, codes_of, difference
from ortrain.artifacts.graph.targets import WEIGHTS, attributes_of

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]

_PREFIX = "base_model.model."
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
#: Settings of PEFT that change what an adapter computes and that adapters here do not have.
_OTHERS = (
    "alpha_pattern",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_qalora",
)


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise ImportError("files of PEFT need safetensors: pip install safetensors") from error


def read_peft(folder: StrPath) -> LoRA:
    """Return the adapters that PEFT saved, as settings for :func:`generate_artifacts`.

    Parameters
    ----------
    folder : str or os.PathLike
        The folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

    Returns
    -------
    LoRA
        The settings, with the values of the tensors. The targets are the modules of the tensors.

    Raises
    ------
    FileNotFoundError
        When a file is missing.
    ValueError
        When a file is damaged, or the adapters are of another kind.
    ImportError
        Without the package ``safetensors``.
    """
    package = _safetensors()
    path = Path(folder) / _CONFIG
    with explained(path, "adapter", "a configuration of PEFT"), open_file(path, "adapter") as file:
        config = json.load(file)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: expected adapters of the type LORA, found {config.get('peft_type')}")
    wrong = [name for name in _OTHERS if config.get(name)]
    if wrong:
        raise ValueError(f"{path}: adapters with {', '.join(wrong)} are not supported")
    path = Path(folder) / _TENSORS
    with open_file(path, "adapter"), explained(path, "adapter", "a safetensors file"):
        tensors: dict[str, Array] = package.load_file(str(path))
    values = {
        name.removeprefix(_PREFIX).replace(".base_layer.", "."): value for name, value in tensors.items()
    }
    modules = dict.fromkeys(name.partition(".lora_")[0] for name in values if ".lora_" in name)
    return LoRA(
        r=int(config["r"]),
        alpha=float(config["lora_alpha"]),
        targets=list(modules),
        dropout=float(config.get("lora_dropout") or 0),
        bias=str(config.get("bias") or "none"),
        use_rslora=bool(config.get("use_rslora")),
        use_dora=bool(config.get("use_dora")),
        values=values,
    )


def _record(state: CheckpointState) -> Adapters:
    if KEY not in state.properties:
        raise ValueError(
            "the checkpoint has no adapters: expected one of artifacts that were created with adapter=LoRA(...)"
        )
    return adapters_of(str(state.properties[KEY]))


def _values(state: CheckpointState, names: list[str]) -> dict[str, Array]:
    return {name: state.parameters[name].data for name in names}


def write_peft(checkpoint: CheckpointState | StrPath, folder: StrPath, base_model: str | None = None) -> None:
    """Write the adapters of a checkpoint as PEFT does.

    Parameters
    ----------
    checkpoint : CheckpointState or str or os.PathLike
        The checkpoint.
    folder : str or os.PathLike
        The folder for ``adapter_config.json`` and ``adapter_model.safetensors``, which ``PeftModel.from_pretrained`` reads.
    base_model : str, optional
        The name of the model that the configuration states.

    Raises
    ------
    ValueError
        When the checkpoint has no adapters.
    ImportError
        Without the package ``safetensors``.
    """
    package = _safetensors()
    state = _opened(checkpoint)
    adapters = _record(state)
    tensors = {f"{_PREFIX}{name}": value for name, value in _values(state, adapters.parameters).items()}
    for bias in adapters.biases:
        module, _, leaf = bias.rpartition(".")
        if any(layer.module == module for layer in adapters.layers):
            tensors[f"{_PREFIX}{module}.base_layer.{leaf}"] = tensors.pop(f"{_PREFIX}{bias}")
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": adapters.r,
        "lora_alpha": adapters.alpha,
        "lora_dropout": adapters.dropout,
        "bias": adapters.bias,
        "use_rslora": adapters.use_rslora,
        "use_dora": adapters.use_dora,
        "fan_in_fan_out": False,
        "target_modules": [layer.module for layer in adapters.layers],
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_files(
        {
            target / _TENSORS: package.save(contiguous, {"format": "pt"}),
            target / _CONFIG: json.dumps(config, indent=2).encode(),
        },
        "adapter",
    )


def write_onnx_adapter(checkpoint: CheckpointState | StrPath, path: StrPath) -> None:
    """Write the adapters of a checkpoint as an ``.onnx_adapter``, for runs of the model of :func:`with_adapter_inputs`.

    Raises
    ------
    ValueError
        When the checkpoint has no adapters.
    """
    state = _opened(checkpoint)
    values = _values(state, _record(state).parameters)
    adapter = AdapterFormat()
    adapter.set_parameters({name: OrtValue.ortvalue_from_numpy(value) for name, value in values.items()})
    adapter.export_adapter(path)


def _opened(checkpoint: CheckpointState | StrPath) -> CheckpointState:
    if isinstance(checkpoint, CheckpointState):
        return checkpoint
    return CheckpointState.load_checkpoint(checkpoint)


# ----------------------------------------------------------------------------------------------------------------------
# Models.


def _loaded(model: onnx.ModelProto | StrPath) -> tuple[onnx.ModelProto, Adapters]:
    """Return a copy of a model, and its adapters."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
    else:
        copy = load_with_weights_apart(model)
    adapters = adapters_in(copy)
    if adapters is None:
        raise ValueError("the model has no adapters: expected an export of artifacts with adapter=LoRA(...)")
    return copy, adapters


def with_adapter_inputs(model: onnx.ModelProto | StrPath) -> onnx.ModelProto:
    """Return an exported model whose adapters are inputs, with B of zeros as their default.

    Without an adapter it computes what the base computes. onnxruntime and ortrain run it with an ``.onnx_adapter``.

    Raises
    ------
    ValueError
        When the model has no adapters.
    """
    changed, adapters = _loaded(model)
    tensors = {tensor.name: tensor for tensor in changed.graph.initializer}
    for layer in adapters.layers:
        if layer.magnitude:
            raise ValueError(
                f"the adapter of {layer.module} uses DoRA, so without the adapter the model would not compute the same "
                "as its base; merge the adapter"
            )
        for name in (layer.a, layer.b):
            tensor = tensors[name]
            if name == layer.b:
                zeros = np.zeros_like(array_of(tensor))
                tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, name))
            changed.graph.input.append(
                onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            )
    return changed


def merged(model: onnx.ModelProto | StrPath) -> onnx.ModelProto:
    """Return an exported model with its adapters added to its weights: the nodes, the size and the speed of the base.

    Raises
    ------
    ValueError
        When the model has no adapters, or weights with one are quantized; see :func:`requantized`.
    """
    changed, adapters = _loaded(model)
    for layer, reader, delta in _products(changed, adapters):
        _merge(changed, reader, layer, delta, _magnitude(changed, layer))
    _remove_adapters(changed, adapters)
    return changed


def requantized(model: onnx.ModelProto | StrPath) -> Quantization:
    """Return an exported model with its adapters added to its weights, which are quantized as they were.

    Quantized weights cannot represent every small change. The error of each layer says how far the new weights are from
    the exact sum; compare outputs before you use the result in place of the base with its adapters.

    Raises
    ------
    ValueError
        When the model has no adapters, or weights with one are in codes other than those of `quantize_weights`.
    """
    changed, adapters = _loaded(model)
    layers = []
    for layer, reader, delta in _products(changed, adapters):
        if reader.op_type == "MatMulNBits":
            layers.append(_merge_codes(changed, reader, layer, delta, _magnitude(changed, layer)))
        else:
            _merge(changed, reader, layer, delta, _magnitude(changed, layer))
    _remove_adapters(changed, adapters)
    return Quantization(tuple(layers), (), changed)


def _products(
    model: onnx.ModelProto, adapters: Adapters
) -> Iterator[tuple[AdaptedLayer, onnx.NodeProto, Array]]:
    """Yield each layer with a node that applies it and the change of its weights."""
    producers = {name: node for node in model.graph.node for name in node.output}
    for layer in adapters.layers:
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        a, b = (array_of(tensors[name]).astype(np.float64) for name in (layer.a, layer.b))
        delta = adapters.scale * _product(layer, a, b)
        for node in sums_of(model.graph, layer):
            yield layer, producers[node.input[0]], delta


def _magnitude(model: onnx.ModelProto, layer: AdaptedLayer) -> Array | None:
    """Return the norms that DoRA trained, one for the weights of each output; None for an adapter without DoRA."""
    found = [
        tensor for tensor in model.graph.initializer if tensor.name == layer.magnitude and layer.magnitude
    ]
    return array_of(found[0]).astype(np.float64) if found else None


def _with_norms(weight: Array, outputs: int, norms: Array | None) -> Array:
    """Return a matrix scaled so that its rows or columns, one for each output, have the given norms."""
    if norms is None:
        return weight
    ratio = norms / np.linalg.norm(weight, axis=1 - outputs)
    return np.asarray(weight * (ratio[:, None] if outputs == 0 else ratio))


def _merge_codes(
    model: onnx.ModelProto, reader: onnx.NodeProto, layer: AdaptedLayer, delta: Array, norms: Array | None
) -> QuantizedLayer:
    """Add a product to the weights of a MatMulNBits, in new initializers if other nodes read the present ones."""
    codes = codes_of(model, reader)
    if codes is None:
        raise ValueError(
            f"cannot merge the adapter of {layer.module}: expected weights of 4 or 8 bits in initializers, with zero points of "
            "that many bits or none"
        )
    exact = _with_norms(decode(codes) + delta, 0, norms)
    made = encode(exact.astype(codes.scales.dtype), codes.coding)
    reads = _reads_of_the_base(model)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for slot, value in ((1, made.packed), (2, made.scales), (3, made.zeros)):
        if value is None:
            continue
        name = reader.input[slot]
        shaped = value.reshape(tensors[name].dims)
        if reads[name] > 1:
            reader.input[slot] = free_name(f"{name}.merged", _graph.names_in_use(model))
            add_initializer(model, reader.input[slot], shaped)
        else:
            tensors[name].CopyFrom(onnx.numpy_helper.from_array(shaped, name))
    error, largest = difference(exact, made)
    size = exact.size * made.scales.itemsize
    return QuantizedLayer(
        layer.module,
        layer.operator,
        layer.weight,
        exact.shape,
        made.coding.bits,
        error,
        largest,
        size,
        made.bytes,
    )


def _merge(
    model: onnx.ModelProto, reader: onnx.NodeProto, layer: AdaptedLayer, delta: Array, norms: Array | None
) -> None:
    """Add a product to the weights that a node reads, in a new initializer if other nodes read the present one."""
    slot, attributes = WEIGHTS[reader.op_type], attributes_of(reader)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    reads = _reads_of_the_base(model)
    name, transposed, is_shared = reader.input[slot], False, reads[reader.input[slot]] > 1
    while name not in tensors or tensors[name].data_type not in _graph.FLOATING:
        node = producers.get(name)
        if node is None or node.op_type not in ("Transpose", "Identity"):
            remedy = "; `requantized` merges into such weights" if reader.op_type == "MatMulNBits" else ""
            found = f"is quantized{remedy}" if node is None else f"{node.op_type} computes"
            raise ValueError(
                f"cannot merge the adapter of {layer.module}: expected weights in an initializer of float numbers, found "
                f"{name!r}, which {found}"
            )
        transposed ^= node.op_type == "Transpose"
        name = node.input[0]
        is_shared |= reads[name] > 1
    weight = array_of(tensors[name])
    weight = weight.T if transposed else weight
    has_outputs_first = bool(attributes.get("transB"))
    if layer.operator not in ("Conv", "Gather") and not has_outputs_first:
        delta = delta.T
    delta = delta / attributes.get("alpha", 1)  # the layer multiplies its weights by alpha
    changed = _with_norms(weight + delta.reshape(weight.shape), 0 if has_outputs_first else 1, norms)
    value = np.ascontiguousarray(changed, dtype=weight.dtype)
    if is_shared:
        apart = free_name(f"{layer.a.partition('.lora_')[0]}.merged", _graph.names_in_use(model))
        add_initializer(model, apart, value)
        reader.input[slot] = apart
    else:
        value = np.ascontiguousarray(value.T) if transposed else value
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(value, name))


def _reads_of_the_base(model: onnx.ModelProto) -> Counter[str]:
    """Count how often nodes read each value, without the nodes of adapters."""
    return Counter(name for node in model.graph.node if not is_added(node) for name in node.input)


def _product(layer: AdaptedLayer, a: Array, b: Array) -> Array:
    """Return B A in the form in which a layer reads its weights."""
    if layer.operator == "Conv":
        product: Array = np.tensordot(b[..., 0, 0] if b.ndim == 4 else b.reshape(b.shape[:2]), a, axes=1)
        return product
    return np.asarray((b @ a).T if layer.operator == "Gather" else b @ a)


def _remove_adapters(model: onnx.ModelProto, adapters: Adapters) -> None:
    """Remove the nodes and initializers of adapters. Results of layers get the names of the sums that are removed."""
    graph = model.graph
    sums = {
        node.input[0]: node.output[0] for node in graph.node if is_added(node) and "/lora/sum" in node.name
    }
    kept = [node for node in graph.node if not is_added(node)]
    for node in kept:
        node.output[:] = [sums.get(name, name) for name in node.output]
    replace_nodes(graph, kept)
    refuse(model, adapters.fused)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    gone = [tensor.name for tensor in graph.initializer if tensor.name not in read]
    remove_initializers(model, [*gone, *sums])
    made = {name for node in graph.node for name in node.output}
    for place in reversed([i for i, value in enumerate(graph.value_info) if value.name not in made]):
        del graph.value_info[place]
    entries = [entry for entry in model.metadata_props if entry.key not in (KEY, BASE)]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
