"""``ortrain quantize``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ortrain.cli import app
from ortrain.cli.numbers import Integer


@app.command(
    "quantize",
    """
    ortrain quantize model.onnx
    ortrain quantize model.onnx small.onnx --bits 8
    ortrain quantize model.onnx --symmetric --block-size 64 --skip lm_head --embeddings
    """,
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.argument("result", type=app.NewFile(), metavar="[RESULT]", required=False)
@click.option(
    "--bits", type=click.Choice(["4", "8"]), default="4", show_default=True, help="number of bits per weight"
)
@click.option(
    "--block-size",
    type=Integer(min=16),
    default=32,
    show_default=True,
    help="number of consecutive weights of a row that share a scale, a power of two",
)
@click.option(
    "--symmetric",
    is_flag=True,
    help="store no zero points; for most weights the error is larger",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="NAME",
    help="layers that are not quantized: a module or node, the end of its name such as lm_head, or a pattern; may be repeated",
)
@click.option(
    "--embeddings", is_flag=True, help="also quantize embedding tables (Gather, EmbedLayerNormalization)"
)
@click.option(
    "--external-data", is_flag=True, help="write the weights to a file next to RESULT, with the ending .data"
)
@app.as_json
def command(
    model: Path,
    result: Path | None,
    bits: str,
    block_size: int,
    symmetric: bool,
    skip: tuple[str, ...],
    embeddings: bool,
    external_data: bool,
    json_output: bool,
) -> None:
    """Quantize the weight matrices of MODEL to 4 or 8 bits, and print the error of each layer.

    RESULT is MODEL with .q4 or .q8 in its name by default. Stock onnxruntime runs it, and `ortrain artifacts --adapter lora`
    trains adapters on it.
    """
    from ortrain.artifacts import quantize_weights

    target = result or model.with_name(f"{model.stem}.q{bits}.onnx")
    done = quantize_weights(
        model,
        target,
        bits=int(bits),
        block_size=block_size,
        zero_points=not symmetric,
        skip=list(skip),
        embeddings=embeddings,
        external_data=external_data or None,
    )
    if json_output:
        app.print_json(
            {
                "model": target,
                "layers": [asdict(layer) for layer in done.layers],
                "skipped": list(done.skipped),
                "error": done.error,
            }
        )
    else:
        click.echo(f"{done}\nwrote {target}")
