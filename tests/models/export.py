"""Export the networks of ``architectures.py`` and record what PyTorch computes with them.

Writes ``<out>/<architecture>/<exporter>_<opset>.onnx``, ``record.npz`` beside them, and ``<out>/cases.json``. Needs
torch 2.13, onnx and onnxscript; the project and its tests need only the files that it wrote, not what it imports.

The record of an architecture holds, under the name of a variant of the network:

``losses``
    the loss before each step of the optimizer, and after the last one
``gradient/<parameter>``
    of the first step
``output``, ``trained_output``
    what the network returns in eval mode, before the first and after the last step
``statistics/<buffer>``
    running mean and variance after the last step, as ONNX defines them: with the variance of the batch itself,
    while PyTorch uses the unbiased estimate
``other_loss``, ``other_norm/<parameter>``
    loss and L2 norms of the gradients of a batch of another shape, before the first step
``mean_loss``, ``deviation``
    of a network with dropout, over many runs

Variants are the forms that the exporters give a network:

``train``
    the network in training mode
``frozen``
    batch normalization by running statistics, which never change (the newer exporter drops the mode)
``folded``
    the same, with batch normalization and weight normalization inside the weights (its default)
``untied``
    weights that the network uses in two places are two parameters (its default too, where one is transposed)
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import pathlib
import sys
import warnings
from typing import Any

try:
    import onnx
    import torch
except ImportError:
    sys.exit("export.py needs torch 2.13, onnx and onnxscript, best in a separate virtual environment")

import numpy as np
from architectures import ARCHITECTURES, Architecture, example, loss_of
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

STEPS = 5
RUNS = 400  # of a network with dropout
LIMIT = 200_000  # bytes of a file

Arrays = dict[str, NDArray[Any]]


def made(architecture: Architecture) -> nn.Module:
    """Return the network with weights that distinguish its parameters (fresh ones are often zeros or ones)."""
    torch.manual_seed(1)
    network = architecture.make()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight.requires_grad:
                module.weight.mul_(0.3)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.6, 1.4)
        for parameter in network.parameters():
            if parameter.requires_grad and parameter.dim() < 2:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return network.train()


def frozen(network: nn.Module) -> nn.Module:
    """Let batch normalization use its running statistics, in place."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return network


def untied(network: nn.Module) -> nn.Module:
    """Give every use of a weight its own parameter, in place."""
    seen: set[int] = set()
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in seen:
                setattr(module, name, nn.Parameter(parameter.detach().clone()))
            seen.add(id(parameter))
    return network


def folded(network: nn.Module) -> nn.Module:
    """Fold weight normalization, and normalization by running statistics, into the weights, in place."""
    network.eval()
    for module in network.modules():
        if nn.utils.parametrize.is_parametrized(module):
            nn.utils.parametrize.remove_parametrizations(module, "weight")
        if not isinstance(module, nn.Sequential):
            continue
        for (_, conv), (name, norm) in itertools.pairwise(list(module.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                fused = nn.utils.fusion.fuse_conv_bn_eval(conv, norm)
                conv.weight, conv.bias = fused.weight, fused.bias.requires_grad_()
                module._modules[name] = nn.Identity()
    return network


VARIANTS = {"train": nn.Module.train, "frozen": frozen, "folded": folded, "untied": untied}


def variant_of(network: nn.Module, exporter: str) -> str:
    """Which variant of the network the exporter writes."""
    has_norm = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    if exporter == "dynamo_plain":
        return "frozen" if has_norm else "train"
    if exporter == "dynamo":
        if has_norm or any(nn.utils.parametrize.is_parametrized(module) for module in network.modules()):
            return "folded"
        if len(list(network.named_parameters(remove_duplicate=False))) > len(list(network.parameters())):
            return "untied"
    return "train"


class PopulationStatistics:
    """Running variances with the variance of the batch itself, as in ONNX's operator."""

    def __init__(self, network: nn.Module) -> None:
        self.variances: dict[str, Tensor] = {}
        for name, module in network.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                self.variances[f"{name}.running_var"] = module.running_var.clone()
                module.register_forward_hook(self._hook(f"{name}.running_var"))

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            if module.training:
                batch = inputs[0].detach().var((0, 2, 3), unbiased=False)
                self.variances[name] = 0.9 * self.variances[name] + 0.1 * batch

        return hook


def trainable(network: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def packed_recurrent(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of recurrent layers in ONNX's form: both directions together, gates in ONNX's order.

    The newer exporter packs them when it exports. Gradients are treated in the same way, because only the order
    changes.
    """
    packed: dict[str, Tensor] = {}
    for name, module in network.named_modules():
        if not isinstance(module, nn.LSTM | nn.GRU):
            continue
        order = (0, 3, 1, 2) if isinstance(module, nn.LSTM) else (1, 0, 2)  # iofc of ifgo, zrh of rzh

        def ordered(key: str, name: str = name, order: tuple[int, ...] = order) -> Tensor:
            gates = tensors[f"{name}.{key}"].chunk(len(order))
            return torch.cat([gates[g] for g in order])

        for layer in range(module.num_layers):
            sides = [f"l{layer}", f"l{layer}_reverse"][: 2 if module.bidirectional else 1]
            packed[f"{name}.W{layer}"] = torch.stack([ordered(f"weight_ih_{side}") for side in sides])
            packed[f"{name}.R{layer}"] = torch.stack([ordered(f"weight_hh_{side}") for side in sides])
            biases = [torch.cat([ordered(f"bias_ih_{side}"), ordered(f"bias_hh_{side}")]) for side in sides]
            packed[f"{name}.B{layer}"] = torch.stack(biases)
    return packed


def numpy_of(tensors: dict[str, Tensor], prefix: str) -> Arrays:
    return {prefix + name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def recorded(architecture: Architecture, network: nn.Module) -> Arrays:
    """Train a copy of the network and return everything that is compared."""
    record: Arrays = {}
    inputs, target = example(architecture, architecture.sizes, seed=11)
    other_inputs, other_target = example(architecture, architecture.other, seed=12)

    probe = copy.deepcopy(network)
    loss_of(architecture.loss, other := probe(*other_inputs.values()), other_target).backward()
    record["other_loss"] = loss_of(architecture.loss, other, other_target).detach().numpy()
    for name, parameter in trainable(probe).items():
        record[f"other_norm/{name}"] = parameter.grad.norm().numpy()
    gradients = {name: parameter.grad for name, parameter in trainable(probe).items()}
    for name, gradient in packed_recurrent(probe, gradients).items():
        record[f"other_norm/{name}"] = gradient.norm().numpy()

    network = copy.deepcopy(network)
    modes = {module: module.training for module in network.modules()}
    with torch.no_grad():
        record["output"] = network.eval()(*inputs.values()).numpy()
    for module, mode in modes.items():
        module.training = mode
    if architecture.random:
        with torch.no_grad():
            runs = [loss_of(architecture.loss, network(*inputs.values()), target).item() for _ in range(RUNS)]
        record |= {"mean_loss": np.float64(np.mean(runs)), "deviation": np.float64(np.std(runs))}
        return record
    statistics = PopulationStatistics(network)
    parameters = trainable(network)
    if architecture.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters.values(), architecture.lr)
    else:
        optimizer = torch.optim.AdamW(parameters.values(), architecture.lr, weight_decay=0.0)
    losses = []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = loss_of(architecture.loss, network(*inputs.values()), target)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {name: p.grad for name, p in parameters.items()}
            record |= numpy_of(gradients | packed_recurrent(network, gradients), "gradient/")
        if step < STEPS:
            if architecture.optimizer == "adamw":
                # onnxruntime's AdamW adds epsilon to the second moment before its bias is corrected.
                optimizer.param_groups[0]["eps"] = 1e-6 / (1 - 0.999 ** (step + 1)) ** 0.5
            optimizer.step()
        if step == STEPS - 1:
            means = {name: b for name, b in network.named_buffers() if name.endswith("running_mean")}
            record |= numpy_of(means | statistics.variances, "statistics/")
    record["losses"] = np.array(losses)
    with torch.no_grad():
        # The run after the last step has updated the running statistics once more.
        for name, buffer in network.named_buffers():
            if f"statistics/{name}" in record:
                buffer.copy_(torch.from_numpy(record[f"statistics/{name}"]))
        record["trained_output"] = network.eval()(*inputs.values()).numpy()
    return record


def export(
    architecture: Architecture, network: nn.Module, exporter: str, opset: int, path: pathlib.Path
) -> None:
    """Export as a user would; only paths of this machine are removed."""
    inputs, _ = example(architecture, architecture.sizes, seed=13)
    before = dict(network.named_buffers())
    network = copy.deepcopy(network)
    if exporter == "torchscript":
        torch.onnx.export(
            network, tuple(inputs.values()), path, dynamo=False, opset_version=opset, input_names=list(inputs),
            output_names=["output"], dynamic_axes=architecture.free, training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )  # fmt: skip
    else:
        program = torch.onnx.export(
            network, tuple(inputs.values()), dynamo=True, opset_version=opset, input_names=list(inputs),
            output_names=["output"], dynamic_shapes={name: architecture.free.get(name) for name in inputs},
            optimize=exporter == "dynamo", external_data=False, verbose=False,
        )  # fmt: skip
        program.save(path, external_data=False)
    model = onnx.load(path)
    found = next(o.version for o in model.opset_import if o.domain == "")
    if found != opset:
        raise SystemExit(f"{path.name}: the exporter wrote opset {found}")
    # The older exporter runs the network, which changes its running statistics.
    for tensor in model.graph.initializer:
        if "running_" in tensor.name:
            tensor.CopyFrom(numpy_helper.from_array(before[tensor.name].numpy(), tensor.name))
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for node in graph.node:
            kept = [p for p in node.metadata_props if p.key != "pkg.torch.onnx.stack_trace"]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            node.ClearField("doc_string")
            graphs += [a.g for a in node.attribute if a.HasField("g")]
    onnx.save(model, path)
    data = path.read_bytes()
    if len(data) > LIMIT or b"/architectures.py" in data:
        raise SystemExit(
            f"{path.name}: {len(data)} bytes, more than {LIMIT}, or names a file of this machine"
        )


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-7)


def matched(
    path: pathlib.Path, network: nn.Module, renamed: dict[str, str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Find out which initializer holds which parameter or running statistic, by name or by value.

    Returns the parameters, as name and permutation of the axes or shape; the statistics; and float initializers
    that are neither.
    """
    graph = onnx.load(path).graph
    initializers = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    left = {name: a for name, a in initializers.items() if a.dtype == np.float32}
    found: dict[str, Any] = {}
    parameters = trainable(network)
    if path.stem.startswith("dynamo"):
        for name, other in renamed.items():
            found[name] = {"parameter": other}
            del left[name]
    for name, parameter in (parameters | packed_recurrent(network, parameters)).items():
        value = parameter.detach().numpy()
        if name in renamed.values() and path.stem.startswith("dynamo"):
            continue
        if name in left and left[name].shape == value.shape:
            found[name] = {"parameter": name}
            del left[name]
            continue
        for other, array in list(left.items()):
            if array.size != value.size or (array.size == 1 and array.ndim != value.ndim):
                continue
            orders = itertools.permutations(range(value.ndim))
            permutations = [order for order in orders if same(array, value.transpose(order))]
            if permutations:
                found[other] = {"parameter": name, "transposed": list(permutations[0])}
            elif same(array.ravel(), value.ravel()):
                found[other] = {"parameter": name, "reshaped": list(array.shape)}
            else:
                continue
            del left[other]
    statistics = {}
    for name, _ in network.named_buffers():
        if name in left and "running_" in name:
            statistics[name] = name
            del left[name]
    missing = set(parameters) - {entry["parameter"] for entry in found.values()}
    if missing and not packed_recurrent(network, parameters):
        print(f"    {path.name}: not found in the model: {sorted(missing)}")
    return found, statistics, sorted(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="ARCHITECTURE", help="all by default: " + ", ".join(ARCHITECTURES)
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "data", help="folder to write to"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    listing = arguments.out / "cases.json"
    cases = json.loads(listing.read_text()) if listing.exists() else {}
    for name in arguments.names or ARCHITECTURES:
        architecture = ARCHITECTURES[name]
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        network = made(architecture)
        needed = dict.fromkeys(variant_of(network, exporter) for exporter, _ in architecture.exports)
        variants = {variant: VARIANTS[variant](made(architecture)) for variant in needed}
        record: Arrays = {}
        for variant, of in variants.items():
            record |= {f"{variant}/{key}": value for key, value in recorded(architecture, of).items()}
        for which, sizes, seed in (("batch", architecture.sizes, 11), ("other", architecture.other, 12)):
            inputs, target = example(architecture, sizes, seed)
            record |= numpy_of(inputs, f"{which}/input/") | {f"{which}/target": target.numpy()}
        np.savez_compressed(folder / "record.npz", **record)
        exports = {}
        for exporter, opset in architecture.exports:
            variant = variant_of(network, exporter)
            path = folder / f"{exporter}_{opset}.onnx"
            export(architecture, network, exporter, opset, path)
            parameters, statistics, others = matched(path, variants[variant], architecture.renamed)
            exports[path.stem] = {
                "opset": opset, "variant": variant, "parameters": parameters, "statistics": sorted(statistics),
                "constants": others,
            }  # fmt: skip
            print(f"{name} {path.stem}: {path.stat().st_size} bytes, losses {record.get(variant + '/losses')}, "
                  f"constants {others}", flush=True)  # fmt: skip
        cases[name] = {
            "loss": architecture.loss, "optimizer": architecture.optimizer, "lr": architecture.lr,
            "random": architecture.random, "exports": exports,
        }  # fmt: skip
        listing.write_text(json.dumps(dict(sorted(cases.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
