"""Adapters outside of checkpoints: files of PEFT, ``.onnx_adapter``, and models with the adapters merged or as inputs."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.reading import explained, open_file
from ortrain._files.weights import Spill, array_of, fits_into_a_file, load_with_weights_apart, write_copy
from ortrain._files.writing import folder_beside, make_folder, write_files
from ortrain._graph.initializers import add_initializer, free_name, is_read, remove_initializers
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
from ortrain.artifacts.graph.block_codes import parts_of_rows
from ortrain.artifacts.graph.coders import Parts
from ortrain.artifacts.graph.dequantized import read_floats
from ortrain.artifacts.graph.dora import UNIT, norms_of, squares_of, with_norms, without_groups
from ortrain.artifacts.graph.fused import refuse, replace_nodes
from ortrain.artifacts.graph.quantized import Quantization, QuantizedLayer
from ortrain.artifacts.graph.stored_weights import Stored, stored_weights, write_weights
from ortrain.artifacts.graph.targets import WEIGHTS, attributes_of

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]

_MEMORY = Spill()
_PREFIX = "base_model.model."
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
#: The path of a layer in a language model of transformers that is an attribute of another module.
_WRAPPED = re.compile(
    r"\w+\.(backbone|gpt_neox|model|transformer)\.(decoder|embed_in|embed_tokens|h|layers|wte)\."
)
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
    for module in modules:
        # PEFT saves the weights of an embedding too, as they are in the base.
        values.pop(f"{module}.weight", None)
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


def _without_wrapper(modules: Sequence[str]) -> str:
    """Return the name of the module around a network of transformers, with a dot; an empty text if there is none.

    To export a language model of transformers, a module around it is needed, which PEFT does not know. In a network of
    transformers, the module with the layers is at the top.
    """
    first = {module.partition(".")[0] for module in modules}
    is_wrapped = len(first) == 1 and any(_WRAPPED.match(f"{module}.") for module in modules)
    return f"{first.pop()}." if is_wrapped else ""


def write_peft(
    checkpoint: CheckpointState | StrPath,
    folder: StrPath,
    base_model: str | None = None,
    prefix: str | None = None,
) -> None:
    """Write the adapters of a checkpoint as PEFT does.

    Parameters
    ----------
    checkpoint : CheckpointState or str or os.PathLike
        The checkpoint.
    folder : str or os.PathLike
        The folder for ``adapter_config.json`` and ``adapter_model.safetensors``, which ``PeftModel.from_pretrained`` reads.
    base_model : str, optional
        The name of the model that the configuration states.
    prefix : str, optional
        The start of the names that PEFT's network does not have, such as ``"model."`` where the exported module contained that
        network as ``self.model``. By default that of the files that the adapters were read from, else that of the module around
        a language model of transformers.

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
    modules = [layer.module for layer in adapters.layers]
    if prefix is None:
        prefix = _without_wrapper(modules) if adapters.prefix is None else adapters.prefix
    tensors = {
        f"{_PREFIX}{name.removeprefix(_PREFIX).removeprefix(prefix)}": value
        for name, value in tensors.items()
    }
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
        "target_modules": list(dict.fromkeys(module.removeprefix(prefix) for module in modules)),
    }
    target = Path(folder)
    make_folder(target, "adapters")
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
    """Return an exported model whose adapters are inputs.

    By default B is zero, and the norms that DoRA trains are those of the weights, so that without an adapter the model computes
    what the base computes, except for biases that were trained: their default is the trained value. onnxruntime and ortrain run
    it with an ``.onnx_adapter``.

    Raises
    ------
    ValueError
        When the model has no adapters.
    """
    changed, adapters = _loaded(model)
    tensors = {tensor.name: tensor for tensor in changed.graph.initializer}
    producers = {name: node for node in changed.graph.node for name in node.output}
    for layer in adapters.layers:
        for name in (layer.a, layer.b, layer.magnitude):
            if not name:
                continue
            tensor = tensors[name]
            value = array_of(tensor)
            if name == layer.b:
                value = np.zeros_like(value)
            elif name == layer.magnitude:
                reader = producers[sums_of(changed.graph, layer)[0].input[0]]
                squares = squares_of(_stored(changed, reader, layer))
                value = np.sqrt(squares).reshape(value.shape).astype(value.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))
    for name in adapters.parameters:
        tensor = tensors[name]
        changed.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    return changed


def merged(
    model: onnx.ModelProto | StrPath, dequantize: bool = False, *, spill: Spill = _MEMORY
) -> onnx.ModelProto:
    """Return an exported model with its adapters added to its weights: the nodes, the size and the speed of the base.

    Only a convolution with groups has larger kernels then, without groups, because its adapter joins channels of all groups.
    :func:`write_merged` writes such a model to a file, in less memory.

    Parameters
    ----------
    model : onnx.ModelProto or path
        An export of artifacts with ``adapter=LoRA(...)``.
    dequantize : bool
        Whether quantized weights with an adapter become float numbers, of the type of their scales: the exact sums, in 4 to 8
        times the memory (``dequantized`` on the command line). :func:`requantized` keeps them quantized. Other weights stay as
        they are.
    spill : Spill, optional
        Where the sums are stored; in memory by default.

    Raises
    ------
    ValueError
        When the model has no adapters, or weights with one are quantized and `dequantize` is False, or a layer with one
        quantizes its input too.
    """
    changed, adapters = _loaded(model)
    decoded: list[str] = []
    for layer, reader, delta in _products(changed, adapters):
        stored = _stored(changed, reader, layer)
        if stored.is_float:
            _merge(changed, stored, layer, delta, spill)
        elif dequantize:
            _dequantize(changed, stored, layer, delta, spill)
            decoded += [node.output[0] for node in stored.copies]
        else:
            can_requantize = _obstacle(stored, delta) is None
            remedy = (
                "; `requantized` merges into such weights, and `dequantized` turns them into float numbers"
                if can_requantize
                else ""
            )
            raise ValueError(_reason(layer, f"{stored.name!r}, which is quantized{remedy}"))
    _remove_adapters(changed, adapters, decoded)
    return changed


def requantized(model: onnx.ModelProto | StrPath) -> Quantization:
    """Return an exported model with its adapters added to its weights, which are quantized as they were.

    Quantized weights cannot represent every small change. The error of each layer says how far the new weights are from
    the exact sum, and ``kept`` how much of the change of training is left: where the change is smaller than a step between
    codes, rounding removes it, however small the error is. Compare outputs before you use the result in place of the base
    with its adapters.

    Raises
    ------
    ValueError
        When the model has no adapters, or the form of weights with one cannot represent other weights.
    """
    changed, adapters = _loaded(model)
    layers = []
    for layer, reader, delta in _products(changed, adapters):
        stored = _stored(changed, reader, layer)
        if (obstacle := _obstacle(stored, delta)) is not None:
            raise ValueError(f"cannot merge the adapter of {layer.module} into {stored.name!r}: {obstacle}")
        exact, parts = _merge(changed, stored, layer, delta, _MEMORY)
        if not stored.is_float:
            layers.append(_described(layer, stored, exact, parts))
    _remove_adapters(changed, adapters)
    return Quantization(tuple(layers), (), changed)


def write_merged(
    model: onnx.ModelProto | StrPath,
    path: StrPath,
    dequantize: bool = False,
    *,
    external_data: bool | None = None,
) -> None:
    """Write the model that :func:`merged` returns, with the sum of one layer in memory at a time.

    Parameters
    ----------
    model, dequantize
        As for :func:`merged`. A model with external data must be given by its path.
    path : str or os.PathLike
        The file.
    external_data : bool, optional
        Whether weights are written to a file next to the model, with its name and the ending ``.data``. By default they are if
        one file could not hold the model.

    Raises
    ------
    ValueError
        As for :func:`merged`; also when `external_data` is False and one file cannot hold the model.
    OSError
        When a file cannot be written.
    """
    make_folder(Path(path).absolute().parent, "model")
    with folder_beside(path, "model") as temporary:
        made = merged(model, dequantize, spill=Spill(temporary / "weights"))
        write_copy(made, path, not fits_into_a_file(made) if external_data is None else external_data)


def _obstacle(stored: Stored, delta: _Change) -> str | None:
    """Return why a sum cannot be stored in the form of the weights; None if it can."""
    if not stored.is_float and delta.size != stored.values.size:
        return "its convolution has groups, whose channels the product of A and B joins"
    return stored.coder.obstacle(stored.parts)


def _stored(model: onnx.ModelProto, reader: onnx.NodeProto, layer: AdaptedLayer) -> Stored:
    """Return the weights of a layer."""
    try:
        return stored_weights(model, reader)
    except ValueError as found:
        raise ValueError(_reason(layer, str(found))) from found


def _reason(layer: AdaptedLayer, found: str) -> str:
    return f"cannot merge the adapter of {layer.module}: expected weights in an initializer of float numbers, found {found}"


@dataclass(frozen=True)
class _Change:
    """What an adapter adds to the weights of its layer: s B A, with a row for each output."""

    layer: AdaptedLayer
    a: Array
    b: Array
    scale: float

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(self.a.size // len(self.a) * self.b.size // self.b.shape[1])

    def whole(self) -> Array:
        """Return all elements."""
        return np.asarray(self.scale * _product(self.layer, self.a, self.b))

    def turned(self, rows: slice) -> Array:
        """Return some rows of the transpose, for weights with a row for each input."""
        return np.asarray(self.scale * (self.a[:, rows].T @ self.b.T))

    def of_outputs(self, rows: slice) -> Array:
        """Return the rows of some outputs."""
        return np.asarray(self.scale * (self.b[rows] @ self.a))


def _products(
    model: onnx.ModelProto, adapters: Adapters
) -> Iterator[tuple[AdaptedLayer, onnx.NodeProto, _Change]]:
    """Yield each layer with a node that applies it and the change of its weights."""
    producers = {name: node for node in model.graph.node for name in node.output}
    for layer in adapters.layers:
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        a, b = (array_of(tensors[name]).astype(np.float64) for name in (layer.a, layer.b))
        for node in sums_of(model.graph, layer):
            yield layer, producers[node.input[0]], _Change(layer, a, b, adapters.scale)


def _magnitude(model: onnx.ModelProto, layer: AdaptedLayer) -> Array | None:
    """Return the norms that DoRA trained, one for the weights of each output; None for an adapter without DoRA."""
    found = [
        tensor for tensor in model.graph.initializer if tensor.name == layer.magnitude and layer.magnitude
    ]
    return array_of(found[0]).astype(np.float64) if found else None


def _merge(
    model: onnx.ModelProto, stored: Stored, layer: AdaptedLayer, delta: _Change, spill: Spill
) -> tuple[Array, Parts]:
    """Add a product to the weights of a layer; return the exact sum, and the tensors that now represent it."""
    if delta.size != stored.values.size:
        return _merge_without_groups(model, stored, layer, delta, spill)
    exact = _sum(model, stored, layer, delta)
    parts = stored.parts_of(exact)
    write_weights(model, stored, parts, _reads_of_the_base(model), _name_of_sum(layer), spill)
    return exact, parts


def _dequantize(
    model: onnx.ModelProto, stored: Stored, layer: AdaptedLayer, delta: _Change, spill: Spill
) -> None:
    """Replace the quantized weights of a layer by float numbers, with a product added to them."""
    if delta.size != stored.values.size:
        _merge_without_groups(model, stored, layer, delta, spill)
        return
    kind = np.float32 if stored.parts.scales is None else stored.parts.scales.dtype
    exact = _sum(model, stored, layer, delta).astype(kind)
    name = free_name(_name_of_sum(layer), _graph.names_in_use(model))
    try:
        add_initializer(model, name, spill.moved(read_floats(model, stored, exact, name)))
    except ValueError as found:
        raise ValueError(
            f"cannot merge the adapter of {layer.module} into float weights: {found}; `requantized` keeps the layer as it is"
        ) from found


def _name_of_sum(layer: AdaptedLayer) -> str:
    return f"{layer.a.partition('.lora_')[0]}.merged"


def _sum(model: onnx.ModelProto, stored: Stored, layer: AdaptedLayer, delta: _Change) -> Array:
    """Return the weights of a layer with a product added to them."""
    weight, factor = stored.values, stored.factor  # the layer multiplies its weights by the factor
    norms = _magnitude(model, layer)
    if weight.ndim == 2 and stored.is_float and norms is None:  # in parts: tables may be large
        part = delta.of_outputs if stored.outputs == 0 else delta.turned
        found = np.empty_like(weight)
        for rows in parts_of_rows(*weight.shape):
            found[rows] = weight[rows].astype(np.float64) + part(rows) / factor
        return found
    whole = delta.whole()
    change = (whole if stored.outputs == 0 else whole.T) / factor
    exact: Array = weight + change.reshape(weight.shape)
    return exact if norms is None else with_norms(exact, stored.outputs, norms / abs(factor))


def _merge_without_groups(
    model: onnx.ModelProto, stored: Stored, layer: AdaptedLayer, delta: _Change, spill: Spill
) -> tuple[Array, Parts]:
    """Add a product that joins the channels of all groups to the weights of a convolution, which then has one group."""
    weight, node = stored.values, stored.layer
    groups = int(attributes_of(node)["group"])
    exact, norms = without_groups(weight.astype(np.float64), groups) + delta.whole(), _magnitude(model, layer)
    if norms is not None:
        adapters = adapters_in(model)
        assert adapters is not None
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        a, b = (array_of(tensors[name]).astype(np.float64) for name in (layer.a, layer.b))
        rows = b.reshape(-1, a.shape[0]) @ a.reshape(a.shape[0], -1)
        ratio = norms.ravel() / np.maximum(
            norms_of(weight + adapters.scale * rows.reshape(weight.shape)), UNIT
        )
        exact = exact * ratio.reshape(-1, *[1] * (weight.ndim - 1))
    parts = Parts(np.ascontiguousarray(exact, dtype=weight.dtype))
    name = free_name(_name_of_sum(layer), _graph.names_in_use(model))
    add_initializer(model, name, spill.moved(parts.codes))
    node.input[WEIGHTS[node.op_type]] = name
    next(attribute for attribute in node.attribute if attribute.name == "group").i = 1
    return exact, parts


def _described(layer: AdaptedLayer, stored: Stored, exact: Array, parts: Parts) -> QuantizedLayer:
    """Return how far the quantized sum of a layer is from the exact one."""
    found, before = stored.values_of(parts), stored.values
    difference, norm = found - exact, float(np.linalg.norm(exact))
    change = exact - before
    size = float((change**2).sum())
    assert parts.scales is not None
    return QuantizedLayer(
        layer.module,
        layer.operator,
        layer.weight,
        exact.shape,
        stored.coder.bits,
        float(np.linalg.norm(difference)) / norm if norm else 0.0,
        float(np.abs(difference).max(initial=0)),
        exact.size * parts.scales.itemsize,
        exact.size * stored.coder.bits // 8 + parts.bytes,
        change=float(np.sqrt(size)) / norm if norm else 0.0,
        kept=float(((found - before) * change).sum()) / size if size else 1.0,
    )


def _reads_of_the_base(model: onnx.ModelProto) -> Counter[str]:
    """Count how often nodes read each value, without the nodes of adapters."""
    return Counter(name for node in _graph.walk(model.graph) if not is_added(node) for name in node.input)


def _product(layer: AdaptedLayer, a: Array, b: Array) -> Array:
    """Return B A, with a row for each output. With groups, the outputs of a group read a part of the rows of A."""
    if layer.operator == "Conv":
        groups = a.shape[0] // b.shape[1]
        matrix = without_groups(b.reshape(b.shape[:2]), groups)
        product: Array = np.tensordot(matrix, a, axes=1)
        return product
    return np.asarray(b @ a)


def _remove_adapters(model: onnx.ModelProto, adapters: Adapters, decoded: Sequence[str] = ()) -> None:
    """Remove the nodes and initializers of adapters. Results of layers get the names of the sums that are removed.

    Nodes that produce a value of `decoded` are removed too, if no other node reads the value.
    """
    graph = model.graph
    sums = {
        node.input[0]: node.output[0] for node in graph.node if is_added(node) and "/lora/sum" in node.name
    }
    # With DoRA, other nodes continue from the sum.
    later = {
        node.input[0]: node.output[0]
        for node in graph.node
        if is_added(node) and node.name.partition("/lora/")[2].startswith(("rescaled", "with_bias"))
    }
    for name, end in sums.items():
        while end in later:
            end = later[end]
        sums[name] = end
    kept = [node for node in graph.node if not is_added(node)]
    for node in kept:
        node.output[:] = [sums.get(name, name) for name in node.output]
    replace_nodes(graph, kept)
    for name in decoded:  # a node comes before those whose results it reads
        if not is_read(model, name):
            makers = [i for i, node in enumerate(graph.node) if node.output[:1] == [name]]
            for place in makers:  # none if another layer read it, too, and it is gone
                del graph.node[place]
    refuse(model, adapters.fused)
    read = {name for node in _graph.walk(graph) for name in node.input} | {
        value.name for value in graph.output
    }
    gone = [tensor.name for tensor in graph.initializer if tensor.name not in read]
    remove_initializers(model, [*gone, *sums])
    made = {name for node in graph.node for name in node.output}
    for place in reversed([i for i, value in enumerate(graph.value_info) if value.name not in made]):
        del graph.value_info[place]
    entries = [entry for entry in model.metadata_props if entry.key not in (KEY, BASE)]
    del model.metadata_props[:]
    model.metadata_props.extend(entries)
