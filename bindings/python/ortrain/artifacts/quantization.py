"""Models with quantized weights, from models with float weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ortrain._files.weights import is_apart, write_copy
from ortrain._support.checks import names_of
from ortrain._support.values import StrPath
from ortrain.artifacts.graph.block_codes import Coding
from ortrain.artifacts.graph.quantized import Quantization, quantize
from ortrain.artifacts.loading import load


def quantize_weights(
    model: onnx.ModelProto | StrPath,
    path: StrPath | None = None,
    *,
    bits: int = 4,
    block_size: int = 32,
    zero_points: bool = True,
    skip: Sequence[str] = (),
    embeddings: bool = False,
    external_data: bool | None = None,
) -> Quantization:
    """Quantize the matrices of MatMul and Gemm to 4 or 8 bits, in blocks that share a scale.

    The layers become ``MatMulNBits`` and the look-ups ``GatherBlockQuantized``, operators of onnxruntime that ortrain
    trains through: artifacts of the result with ``adapter=LoRA(...)`` are those of QLoRA. Activations are not
    quantized. onnxruntime's fused operators ``Attention``, ``FusedGemm`` and ``GemmFastGelu`` become their parts.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike
        The model, or the path of its file. It is not changed.
    path : str or os.PathLike, optional
        Where the quantized model is written.
    bits : {4, 8}, default: 4
        The number of bits per weight.
    block_size : int, default: 32
        The number of weights of a row that share a scale, a power of two of at least 16.
    zero_points : bool, default: True
        Whether each block has a zero point too. A zero point reduces the error if the weights are not centered on zero.
    skip : sequence of str, optional
        Layers that are not quantized: a module or node, the end of its name such as ``"lm_head"``, or a pattern.
    embeddings : bool, default: False
        Whether embedding tables (Gather, EmbedLayerNormalization) are quantized too.
    external_data : bool, optional
        Whether weights are written to a file next to the model, with its name and the ending ``.data``. By default they are if
        one file could not hold the model, or if those of the given model are external data.

    Returns
    -------
    Quantization
        The layers with the error of each, what was skipped and why, and the model. It prints as a list.

    Raises
    ------
    ValueError
        When a setting is not valid, no layer can be quantized, or an entry of `skip` fits none.
    FileNotFoundError
        When there is no model at the path.
    OSError
        When the file cannot be written.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits: expected 4 or 8, found {bits!r}")
    coding = Coding(bits, block_size, zero_points)
    loaded, source = load(model, apart=True)
    if source is None:
        given, loaded = loaded, onnx.ModelProto()
        loaded.CopyFrom(given)
    if external_data is None and any(map(is_apart, loaded.graph.initializer)):
        external_data = True
    done = quantize(loaded, coding, names_of("skip", skip), embeddings)
    if path is not None:
        write_copy(loaded, path, external_data)
    return done
