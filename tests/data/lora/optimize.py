"""Writes the optimized models: what onnxruntime's transformer optimizer makes of the networks.

``python tests/data/lora/optimize.py`` with onnxruntime and sympy installed. The stored files were made by onnxruntime 1.32.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.transformers.optimizer import optimize_model

HERE = Path(__file__).parent
BERT = HERE.parents[1] / "models" / "data" / "bert" / "torchscript_14.onnx"


def folded(path: Path) -> onnx.ModelProto:
    """A model after the basic optimizations of a session, which fold constants and remove dropout."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def with_divisions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose scores are divided, as the optimizer knows them, where they were multiplied with a constant."""
    readers = {name: node for node in model.graph.node for name in node.input}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Mul" and readers[node.output[0]].op_type == "Softmax":
            factor = next(name for name in node.input if name in tensors)
            node.op_type = "Div"
            node.input[:] = [next(name for name in node.input if name != factor), f"{factor}_divisor"]
            divisor = 1 / numpy_helper.to_array(tensors[factor])
            if not any(tensor.name == node.input[1] for tensor in model.graph.initializer):
                model.graph.initializer.append(
                    numpy_helper.from_array(divisor.astype(np.float32), node.input[1])
                )
    return model


def with_attention(model: onnx.ModelProto, heads: int) -> onnx.ModelProto:
    """GPT-2 with the nodes that the optimizer writes: it does not know the causal masks of today's transformers."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in list(model.graph.node):
        if len(node.input) < 2 or not node.input[1].endswith("attn.c_proj.weight"):
            continue
        joined = makers[makers[node.input[0]].input[0]]  # the reshape that joins the heads
        path = node.input[1].removesuffix("c_proj.weight")
        product = next(
            n for n in model.graph.node if n.op_type == "Gemm" and n.input[1] == f"{path}c_attn.weight"
        )
        name = f"GptAttention_{path.split('.h.')[1].partition('.')[0]}"
        inputs = [makers[product.input[0]].input[0], product.input[1], product.input[2], ""]
        fused = helper.make_node(
            "Attention",
            inputs,
            list(joined.output),
            name,
            domain="com.microsoft",
            num_heads=heads,
            unidirectional=1,
        )
        joined.CopyFrom(fused)
    return pruned(model)


def pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model without the nodes and initializers that nothing reads."""
    while True:
        read = {name for node in model.graph.node for name in node.input} | {
            v.name for v in model.graph.output
        }
        idle = [node for node in model.graph.node if read.isdisjoint(node.output)]
        if not idle:
            break
        for node in idle:
            model.graph.node.remove(node)
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
        model.graph.initializer.remove(tensor)
    return model


def optimized(model: onnx.ModelProto, kind: str, heads: int, width: int) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        made = optimize_model(f"{folder}/model.onnx", kind, heads, width, opt_level=0).model
    del made.graph.value_info[:]
    return made


if __name__ == "__main__":
    onnx.save(optimized(folded(BERT), "bert", 4, 24), HERE / "bert_optimized.onnx")
    onnx.save(optimized(with_divisions(folded(HERE / "vit.onnx")), "vit", 4, 16), HERE / "vit_optimized.onnx")
    onnx.save(
        optimized(with_attention(onnx.load(HERE / "gpt2.onnx"), 2), "bert", 2, 16),
        HERE / "gpt2_optimized.onnx",
    )
