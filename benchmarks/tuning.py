"""Try other values of the constants in `core/src/backend/cpu/tuning.h`: `python -m benchmarks.tuning --help`.

For each value, the sources that use the constant are compiled with a changed header and linked with the objects of an
existing build. The two libraries then take turns in training the small models below, each of which spends most of its
time in code that a constant controls.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.builds import Turns, add_config, compare
from benchmarks.runner import ROOT

HEADER = Path("backend/cpu/tuning.h")
SOURCES = ROOT / "core" / "src"

Node = tuple[str, Sequence[str], dict[str, Any]]
"""An operator with its inputs, in which `x` is what comes in and `w0`, `w1`, ... are weights, and its attributes."""


def network(
    shape: Sequence[int],
    node: Node,
    weights: Sequence[Sequence[int]] = (),
    domain: str = "",
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> onnx.ModelProto:
    """Build a model of one operator on an input that is scaled by a trained vector, so that it has a gradient."""
    kind, inputs, attributes = node
    rng = np.random.default_rng(0)
    trained = {"scale": np.ones(shape[-1], np.float32)}
    trained |= {
        f"w{i}": (rng.standard_normal(size) / np.sqrt(max(size[-1], 1))).astype(np.float32)
        for i, size in enumerate(weights)
    }
    nodes = [
        helper.make_node("Mul", ["input", "scale"], ["x"]),
        helper.make_node(kind, list(inputs), ["output"], domain=domain, **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (trained | dict(constants)).items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def product(rows: int, depth: int, columns: int, by_rows: bool = True) -> onnx.ModelProto:
    """Build a dense layer whose weights are stored as (depth, columns), or transposed if not `by_rows`."""
    weights = (depth, columns) if by_rows else (columns, depth)
    return network((rows, depth), ("Gemm", ["x", "w0"], {"transB": int(not by_rows)}), [weights])


FROZEN = ("weights", "scales")
"""Names of initializers that are not trained."""


def quantized_product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Build a dense layer whose weights are stored in four bits."""
    rng = np.random.default_rng(0)
    blocks = depth // 32
    stored = {
        "weights": rng.integers(0, 256, (columns, blocks, 16), np.uint8),
        "scales": np.full(columns * blocks, 0.01, np.float32),
    }
    sizes = {"K": depth, "N": columns, "bits": 4, "block_size": 32}
    node: Node = ("MatMulNBits", ["x", *FROZEN], sizes)
    return network((rows, depth), node, domain="com.microsoft", constants=stored)


def convolution(batch: int, channels: int, filters: int, size: int) -> onnx.ModelProto:
    node: Node = ("Conv", ["x", "w0"], {"pads": [1, 1, 1, 1]})
    return network((batch, channels, size, size), node, [(filters, channels, 3, 3)])


def attention(batch: int, heads: int, queries: int, keys: int, size: int) -> onnx.ModelProto:
    """Attention of `queries` inputs on keys and values that are trained."""
    memory = (batch, keys, heads * size)
    node: Node = ("MultiHeadAttention", ["x", "w0", "w1"], {"num_heads": heads})
    return network((batch, queries, heads * size), node, [memory, memory], "com.microsoft")


def transpose(shape: Sequence[int], order: Sequence[int]) -> onnx.ModelProto:
    return network(shape, ("Transpose", ["x"], {"perm": list(order)}))


def lstm(steps: int, batch: int, size: int) -> onnx.ModelProto:
    node: Node = ("LSTM", ["x", "w0", "w1", "w2"], {"hidden_size": size})
    return network((steps, batch, size), node, [(1, 4 * size, size), (1, 4 * size, size), (1, 8 * size)])


Cases = dict[str, Callable[[], onnx.ModelProto]]


def products(*sizes: tuple[int, int, int], by_rows: bool = True) -> Cases:
    return {
        f"{m} x {k} x {n}": lambda m=m, k=k, n=n: product(m, k, n, by_rows)  # type: ignore[misc]
        for m, k, n in sizes
    }


def convolutions(*sizes: tuple[int, int, int, int]) -> Cases:
    return {
        f"{b} of {s} x {s}, {c} to {f} channels": lambda b=b, c=c, f=f, s=s: convolution(b, c, f, s)  # type: ignore[misc]
        for b, c, f, s in sizes
    }


def attentions(*sizes: tuple[int, int, int, int, int]) -> Cases:
    return {
        f"{b} x {h} heads, {q} queries, {k} keys of {s}": lambda b=b, h=h, q=q, k=k, s=s: attention(
            b, h, q, k, s
        )  # type: ignore[misc]
        for b, h, q, k, s in sizes
    }


ELEMENTWISE: Cases = {
    "sum of 3 x 4 million": lambda: network((512, 8192), ("Sum", ["x", "x", "input"], {})),
    "clip of 4 million": lambda: network((512, 8192), ("Clip", ["x"], {})),
}
COPIES: Cases = {
    "64 x 256 x 196, last two": lambda: transpose((64, 256, 196), (0, 2, 1)),
    "8 x 128 x 4 x 64, heads": lambda: transpose((8, 128, 4, 64), (0, 2, 1, 3)),
    "64 x 64 x 8, reversed": lambda: transpose((64, 64, 8), (2, 1, 0)),
}
BLOCKS = products((256, 512, 512), (64, 1024, 1024), (512, 256, 2048))
WINOGRAD = convolutions((8, 64, 64, 56), (8, 256, 256, 14), (16, 128, 128, 28), (1, 128, 128, 28))

CASES: dict[str, Cases] = {
    "kPiece": ELEMENTWISE,
    "kDraws": {"dropout of 4 million": lambda: network((512, 8192), ("Dropout", ["x"], {}))},
    "kLrnPiece": {"8 x 64 x 56 x 56": lambda: network((8, 64, 56, 56), ("LRN", ["x"], {"size": 5}))},
    "kSoftmaxColumns": {
        "32 x 64 x 56 x 56": lambda: network((32, 64, 56, 56), ("Softmax", ["x"], {"axis": 1}))
    },
    "kBiasColumns": {
        "LSTM, 32 steps, 16 x 256": lambda: lstm(32, 16, 256),
        "64 steps, 4 x 32": lambda: lstm(64, 4, 32),
    },
    "kCopyPieceBytes": COPIES,
    "kCopyBytesPerItem": COPIES,
    "kSmallProduct": products(
        (16, 16, 16), (32, 32, 32), (64, 64, 64), (96, 96, 96), (128, 128, 128), (160, 160, 160)
    )
    | products((64, 500, 10), (8, 256, 256), (32, 256, 64)),
    "kSmallBf16Product": products((8, 16, 16), (16, 16, 16), (16, 32, 32), (32, 32, 32), (64, 64, 64)),
    "kPackedRows": products((256, 512, 512), (512, 512, 512), (512, 128, 512), (1024, 512, 512)),
    "kBlockColumns": BLOCKS,
    "kBlockRows": BLOCKS,
    "kNearby": products((64, 512, 512), by_rows=False) | products((64, 64, 64), by_rows=False),
    "kFewDots": products(
        (8, 64, 32), (16, 64, 32), (4, 512, 512), (8, 512, 512), (16, 512, 512), by_rows=False
    ),
    "kFewRows": products((16, 512, 512), (32, 512, 512), (64, 512, 512)),
    "kFewNarrowRows": products((16, 512, 512), (32, 512, 512), (64, 512, 512)),
    "kNarrowPanel": products((32, 512, 512), (64, 512, 512)),
    "kFewPanels": products((64, 512, 16), (64, 512, 32), (64, 512, 64)),
    "kUnpackedRows": {
        f"{m} x {k} x {n}, four bits": lambda m=m, k=k, n=n: quantized_product(m, k, n)  # type: ignore[misc]
        for m, k, n in [(1, 1024, 1024), (8, 1024, 1024), (64, 512, 2048)]
    },
    "kMultiplications": products((16, 32, 32), (16, 64, 64), (32, 64, 64)),
    "kConvTile": convolutions((8, 64, 64, 28), (8, 16, 32, 56)),
    "kScoreBytes": attentions((8, 4, 128, 128, 64), (2, 8, 1024, 1024, 64)),
    "kLeastQueries": attentions((2, 8, 1024, 1024, 64), (1, 8, 512, 2048, 64)),
    "kLargestQueries": attentions((8, 4, 128, 128, 64), (8, 8, 256, 64, 64)),
    "kFewQueries": attentions((8, 4, 1, 128, 64), (8, 4, 2, 128, 64), (8, 4, 3, 128, 64), (8, 4, 4, 128, 64)),
    "kKeptKeys": attentions((8, 4, 128, 128, 64), (4, 8, 256, 256, 64), (2, 8, 512, 512, 64)),
    "kOwnCacheBytes": WINOGRAD,
    "kSharedCacheBytes": WINOGRAD,
    "kLeastChunk": WINOGRAD,
    "kLargestChunk": WINOGRAD,
    "kWinogradPad": WINOGRAD,
    "kLeastChannels": convolutions((8, 16, 16, 56), (8, 16, 64, 28), (8, 64, 16, 28), (8, 32, 32, 28)),
    "kLeastPairs": convolutions((8, 16, 16, 28), (8, 16, 16, 56), (8, 16, 32, 28), (8, 32, 16, 28)),
    "kLeastTiles": convolutions((1, 512, 512, 4), (1, 512, 512, 7), (1, 256, 256, 8), (1, 64, 64, 28)),
    "kLeastProducts": convolutions((8, 16, 16, 28), (1, 32, 32, 28), (1, 32, 32, 56), (1, 64, 64, 56)),
    "kResultsPerTile": convolutions((16, 128, 128, 5), (16, 128, 128, 7), (8, 512, 512, 7), (4, 64, 64, 9)),
    "kResultsPerLargeTile": convolutions((4, 64, 64, 9), (4, 64, 64, 10), (8, 512, 512, 7), (8, 32, 64, 14)),
    "kLeastLine": convolutions((16, 512, 512, 4), (16, 256, 256, 8), (16, 128, 128, 16)),
    "kLeastLargeTiles": convolutions((1, 128, 128, 12), (2, 512, 512, 4), (1, 512, 512, 7), (4, 256, 256, 8)),
}


def changed_header(name: str, value: str) -> str:
    """Return the header with another value of a constant.

    Raises
    ------
    ValueError
        It has no such constant.
    """
    text = (SOURCES / HEADER).read_text()
    changed, count = re.subn(rf"\b{name} = [^,;]+", f"{name} = {value}", text)
    if count != 1:
        raise ValueError(f"{HEADER} has no constant {name}")
    return changed


def build_with(name: str, value: str, build: Path, package: Path, work: Path) -> Path:
    """Return a folder with the package whose library has another value of a constant."""
    include = work / "include"
    (include / HEADER).parent.mkdir(parents=True)
    (include / HEADER).write_text(changed_header(name, value))
    uses = re.compile(rf"\b{name}\b")
    database = json.loads(subprocess.check_output(["ninja", "-C", build, "-t", "compdb"], text=True))
    link = subprocess.check_output(["ninja", "-C", build, "-t", "commands", "libortrain.so"], text=True)
    command = shlex.split(link.strip().split("\n")[-1].removeprefix(": && ").removesuffix(" && :"))
    for entry in database:
        source = Path(entry["file"])
        if not entry["output"].startswith("CMakeFiles/core.dir") or source.suffix != ".cpp":
            continue
        text = source.read_text()
        if "tuning.h" not in text or not uses.search(text):
            continue
        compiler = shlex.split(entry["command"])
        compiled = work / f"{source.stem}.o"
        compiler[compiler.index("-o") + 1] = str(compiled)
        compiler[compiler.index("-MF") + 1] = str(compiled.with_suffix(".d"))
        first = next(i for i, part in enumerate(compiler) if part.startswith("-I"))
        compiler.insert(first, f"-I{include}")
        subprocess.run(compiler, cwd=build, check=True)
        command[command.index(entry["output"])] = str(compiled)
    site = work / "site"
    shutil.copytree(package, site / package.name)
    command[command.index("-o") + 1] = str(site / package.name / "lib" / "libortrain.so")
    subprocess.run(command, cwd=build, check=True)
    return site


def make_artifacts(model: onnx.ModelProto, folder: Path) -> None:
    from ortrain import artifacts

    artifacts.generate_artifacts(
        model,
        requires_grad=[t.name for t in model.graph.initializer if t.name not in FROZEN],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=str(folder),
    )


def main() -> int:
    import ortrain

    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument(
        "constants", nargs="+", metavar="NAME=VALUE[,VALUE...]", help="constants and the values to try"
    )
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "python", help="the build folder to start from"
    )
    parser.add_argument(
        "--package",
        type=Path,
        default=Path(ortrain.__file__).parent,
        help="the package installed from the build",
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each build (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of a turn (default: 0.2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each build (default: 2)")
    add_config(parser)
    arguments = parser.parse_args()
    turns = Turns(
        rounds=arguments.rounds,
        threads=arguments.threads,
        seconds=arguments.seconds,
        config=arguments.config,
    )
    for given in arguments.constants:
        name, _, values = given.partition("=")
        if name not in CASES:
            parser.error(f"no cases for {name}; there are {', '.join(CASES)}")
        for value in values.split(","):
            with tempfile.TemporaryDirectory(prefix="ortrain-tuning-") as scratch:
                work = Path(scratch)
                site = build_with(name, value, arguments.build, arguments.package, work / "build")
                for case, model in CASES[name].items():
                    folder = work / "artifacts"
                    shutil.rmtree(folder, ignore_errors=True)
                    make_artifacts(model(), folder)
                    found = compare(site, arguments.package.parent, folder, turns, scratch)
                    low, high = found.quartiles
                    print(
                        f"{name} = {value}: {case}: {found.ratio:.3f} ({low:.3f} to {high:.3f}) "
                        f"of {found.second_ms:.3f} ms",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
