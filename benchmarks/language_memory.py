"""Memory and speed of adapters beside a language model of 4 bits: `python -m benchmarks.language_memory --help`.

Models have the shape of GPT-2 small and of Qwen2.5-0.5B, and random weights, written with 4 bits node by node. A step is one row
of 256 tokens, with LoRA of rank 8 on all linear layers but the last one. Each contestant trains in a separate process, in turns.
Memory is that of the whole process at its peak. A memory budget is the session's entry `ortrain.memory_budget`. PyTorch trains
the same shape with peft, in float32. With `--realtime`, processes run under `chrt -r 10`, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import ROOT
from benchmarks.worker import memory_mb

LENGTH, RANK, BLOCK = 256, 8, 32


@dataclass(frozen=True)
class Shape:
    """The shape of a language model.

    Attributes
    ----------
    inner : width between the two layers of a feed-forward part.
    gated : whether it is that of Qwen (RMS normalization, rotary positions, gated units), else that of GPT-2.
    budget : MiB of intermediate values that are measured as a memory budget.
    """

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    gated: bool
    budget: int


SHAPES = {
    "gpt2": Shape(12, 768, 12, 12, 3072, 50257, gated=False, budget=170),
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 4864, 151936, gated=True, budget=250),
}


class Writer:
    """The nodes of a model whose matrices have 4 bits.

    Parameters
    ----------
    shape : Shape
        What it is to have.
    small_table : bool
        Whether the embeddings have 4 bits too, instead of float32.
    """

    def __init__(self, shape: Shape, small_table: bool) -> None:
        from ortrain.models.building import Graph

        self.shape, self.graph, self._small_table = shape, Graph(1), small_table
        self.rng = self.graph.rng
        self.dim = shape.width // shape.heads

    def codes(self, rows: int, columns: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return random codes of 4 bits with scales and zero points: numbers with a deviation of 1 / sqrt(columns)."""
        blocks = columns // BLOCK
        codes = self.rng.integers(0, 256, (rows, blocks, BLOCK // 2), np.uint8)
        scales = np.full((rows, blocks), 1 / (4.6 * np.sqrt(columns)), np.float32)
        return codes, scales, np.full((rows, (blocks + 1) // 2), 0x88, np.uint8)

    def linear(self, name: str, value: str, before: int, after: int, bias: bool, result: str = "") -> str:
        """Append a linear layer."""
        codes, scales, zeros = self.codes(after, before)
        names = [
            self.graph.weight(f"{name}.weight_{part}", values)
            for part, values in (
                ("q4", codes),
                ("scales", scales.reshape(-1)),
                ("zeros", zeros.reshape(-1)),
            )
        ]
        attributes = {"K": before, "N": after, "bits": 4, "block_size": BLOCK, "domain": "com.microsoft"}
        found = self.graph.add("MatMulNBits", [value, *names], "" if bias else result, **attributes)
        if bias:
            found = self.graph.add("Add", [found, self.graph.weight(f"{name}.bias", np.zeros(after))], result)
        return found

    def embedded(self) -> str:
        """Append the embeddings of the tokens."""
        rows, width = self.shape.vocabulary, self.shape.width
        if self._small_table:
            codes, scales, zeros = self.codes(rows, width)
            names = [
                self.graph.weight("embedding.weight_q4", codes.reshape(rows, -1)),
                self.graph.weight("embedding.weight_scales", scales),
                self.graph.weight("embedding.weight_zeros", zeros),
            ]
            inputs = [names[0], "input_ids", *names[1:]]
            attributes: dict[str, Any] = {
                "bits": 4,
                "block_size": BLOCK,
                "gather_axis": 0,
                "quantize_axis": 1,
            }
            return self.graph.add("GatherBlockQuantized", inputs, domain="com.microsoft", **attributes)
        table = self.rng.standard_normal((rows, width), np.float32) * np.float32(0.02)
        return self.graph.add("Gather", [self.graph.weight("embedding.weight", table), "input_ids"])

    def norm(self, name: str, value: str) -> str:
        """Append a normalization over the last dimension."""
        width = self.shape.width
        if not self.shape.gated:
            return self.graph.layer_norm(name, value, width)
        add = self.graph.add
        mean = add("ReduceMean", [add("Mul", [value, value]), self.constant(np.array([-1]))])
        scale = add("Reciprocal", [add("Sqrt", [add("Add", [mean, self.constant(np.float32(1e-6))])])])
        return add("Mul", [add("Mul", [value, scale]), self.graph.weight(f"{name}.weight", np.ones(width))])

    def constant(self, value: Any) -> str:
        """Append a constant, which is not trained."""
        import onnx

        array = np.asarray(value)
        return self.graph.add("Constant", [], value=onnx.numpy_helper.from_array(array))

    def heads(self, value: str, count: int, angles: tuple[str, str] | None) -> str:
        """Append the split of rows into heads, ``[batch, heads, tokens, dim]``, turned by their positions if there are angles."""
        add = self.graph.add
        split = add("Reshape", [value, self.constant(np.array([0, 0, count, self.dim]))])
        split = add("Transpose", [split], perm=[0, 2, 1, 3])
        if angles is None:
            return split
        half = self.dim // 2
        names = [f"{split}.left", f"{split}.right"]
        sizes = self.constant(np.array([half, half]))
        self.graph.outputs_of("Split", [split, sizes], names, axis=-1)
        turned = add("Concat", [add("Neg", [names[1]]), names[0]], axis=-1)
        return add("Add", [add("Mul", [split, angles[0]]), add("Mul", [turned, angles[1]])])

    def attention(self, name: str, value: str, mask: str, angles: tuple[str, str] | None) -> str:
        """Append an attention layer."""
        add, shape, dim = self.graph.add, self.shape, self.dim
        sizes = {"query": shape.heads, "key": shape.groups, "value": shape.groups}
        parts = {
            part: self.heads(
                self.linear(f"{name}.{part}", value, shape.width, count * dim, bias=True),
                count,
                None if part == "value" else angles,
            )
            for part, count in sizes.items()
        }
        if shape.groups < shape.heads:
            for part in ("key", "value"):
                times = shape.heads // shape.groups
                wide = add("Unsqueeze", [parts[part], self.constant(np.array([2]))])
                wide = add("Expand", [wide, self.constant(np.array([1, 1, times, 1, 1]))])
                parts[part] = add("Reshape", [wide, self.constant(np.array([0, shape.heads, -1, dim]))])
        turned = add("Transpose", [parts["key"]], perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [parts["query"], turned]), self.constant(np.float32(dim**-0.5))])
        shares = add("Softmax", [add("Add", [scores, mask])], axis=-1)
        seen = add("Transpose", [add("MatMul", [shares, parts["value"]])], perm=[0, 2, 1, 3])
        seen = add("Reshape", [seen, self.constant(np.array([0, 0, shape.width]))])
        return self.linear(f"{name}.out", seen, shape.width, shape.width, bias=not shape.gated)

    def forward(self, name: str, value: str) -> str:
        """Append the feed-forward part of a layer."""
        add, width, inner = self.graph.add, self.shape.width, self.shape.inner
        if not self.shape.gated:
            wide = add(
                "Gelu", [self.linear(f"{name}.up", value, width, inner, bias=True)], approximate="tanh"
            )
            return self.linear(f"{name}.down", wide, inner, width, bias=True)
        gate = self.linear(f"{name}.gate", value, width, inner, bias=False)
        gate = add("Mul", [gate, add("Sigmoid", [gate])])
        up = self.linear(f"{name}.up", value, width, inner, bias=False)
        return self.linear(f"{name}.down", add("Mul", [gate, up]), inner, width, bias=False)

    def write(self, path: Path) -> None:
        """Write the model: from ``input_ids``, int64 ``[batch, 256]``, to ``logits``."""
        import onnx

        shape, add = self.shape, self.graph.add
        value, angles = self.embedded(), None
        if shape.gated:
            at = np.arange(LENGTH)[:, None] * 1e6 ** (-np.arange(0, self.dim, 2)[None] / self.dim)
            both = np.concatenate([at, at], axis=1)
            angles = (
                self.constant(np.cos(both).astype(np.float32)),
                self.constant(np.sin(both).astype(np.float32)),
            )
        else:
            table = self.rng.normal(0, 0.02, (LENGTH, shape.width))
            value = add("Add", [value, self.graph.weight("position.weight", table)])
        mask = self.constant(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))
        for layer in range(shape.layers):
            name = f"layers.{layer}"
            seen = self.attention(f"{name}.attention", self.norm(f"{name}.norm1", value), mask, angles)
            value = add("Add", [value, seen])
            value = add("Add", [value, self.forward(f"{name}.mlp", self.norm(f"{name}.norm2", value))])
        self.linear("lm_head", self.norm("norm", value), shape.width, shape.vocabulary, False, "logits")
        model = self.graph.model("language", "input_ids", [LENGTH], "logits", shape.vocabulary, "int64")
        scores = onnx.helper.make_tensor_value_info(
            "logits", onnx.TensorProto.FLOAT, ["batch", LENGTH, shape.vocabulary]
        )
        model.graph.output[0].CopyFrom(scores)
        model.opset_import[0].version = 20
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)


def make(name: str, folder: Path, small_table: bool) -> None:
    """Write the artifacts of a model."""
    from ortrain.artifacts import LoRA
    from ortrain.trainer.creation import make_artifacts

    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".onnx")
    Writer(SHAPES[name], small_table).write(path)
    # Nor has the last layer an adapter with "all-linear" of peft.
    make_artifacts(path, "token_cross_entropy", "adamw", folder, None, None, adapter=LoRA(r=RANK))
    path.unlink()


def work(name: str, folder: Path, steps: int, threads: int, budget: str) -> dict[str, Any]:
    """Train with ortrain in this process, and return what it takes."""
    from ortrain import Trainer
    from ortrain.trainer import Callback

    class Times(Callback):
        """Notes the time of each step."""

        def __init__(self) -> None:
            self.began, self.seconds, self.losses = 0.0, list[float](), list[float]()

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any]) -> None:
            self.began = perf_counter()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
            self.seconds.append(perf_counter() - self.began)
            self.losses.append(logs["loss"])

    ids = np.random.default_rng(1).integers(0, SHAPES[name].vocabulary, (steps + 1, LENGTH + 1))
    config = {"ortrain.optional_outputs": "0"}
    if budget:
        config["ortrain.memory_budget"] = budget
    trainer = Trainer(folder, threads=threads, config=config, feature_cache=False, learning_rate=1e-4)
    times = Times()
    trainer.fit((ids[:, :-1], ids[:, 1:]), 1, batch_size=1, verbose=False, callbacks=[times])
    return _found(times.seconds, times.losses)


def work_torch(name: str, steps: int, threads: int) -> dict[str, Any]:
    """Train with PyTorch and peft in this process, and return what it takes."""
    import peft  # type: ignore[import-not-found, unused-ignore]
    import torch
    import transformers  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(threads)
    shape = SHAPES[name]
    assert not shape.gated
    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=LENGTH,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    lora = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-4)
    ids = np.random.default_rng(1).integers(0, shape.vocabulary, (steps + 1, LENGTH + 1))
    seconds, losses = list[float](), list[float]()
    for row in torch.from_numpy(ids):
        began = perf_counter()
        scores = model(input_ids=row[None, :-1]).logits
        loss = torch.nn.functional.cross_entropy(scores[0], row[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds.append(perf_counter() - began)
    return _found(seconds, losses)


def _found(seconds: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    """Return what was measured. The first step plans memory."""
    return {
        "seconds": statistics.median(seconds[1:]),
        "losses": list(losses),
        "peak": memory_mb("VmHWM"),
        "own": memory_mb("RssAnon"),
        "mapped": memory_mb("RssFile"),
    }


def measure(options: argparse.Namespace) -> str:
    """Return a table of all contestants."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="ortrain-memory-", dir=options.folder) as temporary:
        contestants: list[tuple[str, str, list[str]]] = []
        for name in options.models.split(","):
            for table in ("float32", "4-bit"):
                folder = Path(temporary) / f"{name}-{table}"
                # A separate process, so that memory for making artifacts is given back.
                _run(sys.executable, ["--make", name, str(folder), table], options.realtime)
                for budget in ("", f"{SHAPES[name].budget}M", "auto"):
                    what = f"{table} embeddings" + (f", memory_budget {budget}" if budget else "")
                    contestants.append((name, what, ["--worker", name, str(folder), budget]))
            if options.torch and not SHAPES[name].gated:
                contestants.append((name, "PyTorch, peft, float32", ["--torch-worker", name]))
        settings = ["--steps", str(options.steps), "--threads", str(options.threads)]
        for _ in range(options.rounds):
            for name, what, arguments in contestants:
                python = options.torch if arguments[0] == "--torch-worker" else sys.executable
                printed = _run(python, [*settings, *arguments], options.realtime)
                rows.setdefault((name, what), []).append(json.loads(printed.splitlines()[-1]))
                print(name, what, rows[name, what][-1], file=sys.stderr, flush=True)
    lines = [
        "| model | contestant | peak memory | not mapped | tokens a second |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (name, what), found in rows.items():
        peak, own, seconds = (
            statistics.median(each[key] for each in found) for key in ("peak", "own", "seconds")
        )
        rates = sorted(LENGTH / each["seconds"] for each in found)
        speed = f"{LENGTH / seconds:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        lines.append(f"| {name} | {what} | {peak:,.0f} MiB | {own:,.0f} MiB | {speed} |")
    return "\n".join([*lines, "", f"load of the machine {os.getloadavg()[0]:.1f}, {options.threads} threads"])


def _run(python: str, arguments: Sequence[str], realtime: bool) -> str:
    command = [python, "-m", "benchmarks.language_memory", *arguments]
    command = ["chrt", "-r", "10", *command] if realtime else command
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch", help="an interpreter with torch, transformers and peft, to compare with")
    parser.add_argument("--folder", help="where artifacts are written while the script runs")
    parser.add_argument("--realtime", action="store_true", help="run processes under chrt -r 10")
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--torch-worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        name, folder, table = options.make
        make(name, Path(folder), table == "4-bit")
    elif options.worker:
        name, folder, budget = options.worker
        print(json.dumps(work(name, Path(folder), options.steps, options.threads, budget)))
    elif options.torch_worker:
        print(json.dumps(work_torch(options.torch_worker, options.steps, options.threads)))
    else:
        print(measure(options))


if __name__ == "__main__":
    main()
