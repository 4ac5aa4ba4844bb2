"""Training artifacts: from an inference model to the files that a training session loads.

Needs ``onnx`` (``pip install 'ortrain[artifacts]'``). Artifacts are made once, on any machine; the device that
trains needs only the files.

Three subpackages do the work, and each imports only those before it: ``choice`` decides which initializers are parameters,
``graph`` changes the graph of the model, ``report`` lists these choices and what a user should know about the weights.
"""

from ortrain.artifacts.adapter_files import (
    merged,
    read_peft,
    requantized,
    with_adapter_inputs,
    write_merged,
    write_onnx_adapter,
    write_peft,
)
from ortrain.artifacts.blocks import LossType, OptimType
from ortrain.artifacts.cache import without_cache
from ortrain.artifacts.choice.declaration import UnknownParameterWarning
from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.generation import NothingToTrainWarning, generate_artifacts
from ortrain.artifacts.graph.adapters import AdaptedLayer, Adapters, LoRA
from ortrain.artifacts.graph.changes import ChangeKind, WeightChange
from ortrain.artifacts.graph.head import Head, NewHead
from ortrain.artifacts.graph.quantization_aware import Int8, quantize_static
from ortrain.artifacts.graph.quantized import Quantization, QuantizedLayer
from ortrain.artifacts.quantization import quantize_weights
from ortrain.artifacts.report.artifact_report import ArtifactReport
from ortrain.artifacts.report.findings import SharedWeight
from ortrain.artifacts.report.folded import FoldedWeight
from ortrain.artifacts.step import generate_step, write_step
from ortrain.artifacts.transfer import with_weights_of

__all__ = [
    "AdaptedLayer",
    "Adapters",
    "ArtifactReport",
    "ChangeKind",
    "Fate",
    "FoldedWeight",
    "Head",
    "InitializerReport",
    "Int8",
    "LoRA",
    "LossType",
    "NewHead",
    "NothingToTrainWarning",
    "OptimType",
    "Quantization",
    "QuantizedLayer",
    "SharedWeight",
    "UnknownParameterWarning",
    "WeightChange",
    "generate_artifacts",
    "generate_step",
    "merged",
    "quantize_static",
    "quantize_weights",
    "read_peft",
    "requantized",
    "with_adapter_inputs",
    "with_weights_of",
    "without_cache",
    "write_merged",
    "write_onnx_adapter",
    "write_peft",
    "write_step",
]
