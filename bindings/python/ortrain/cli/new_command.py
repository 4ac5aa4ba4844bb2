"""``ortrain new``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain._files.writing import make_folder, write_file
from ortrain.cli import app, fitting, running
from ortrain.cli.numbers import Integer


@app.command(
    "new",
    """
    ortrain new mlp --data flowers.csv --target kind
    ortrain new cnn --data pictures/ --size 48
    ortrain new transformer --data reviews.npz --out reviews.onnx
    """,
)
@click.argument("network", type=click.Choice(list(fitting.NETWORKS)), metavar="NETWORK")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="NPZ, NPY, CSV, Parquet, JSON lines, or a folder of images by class",
)
@click.option("--target", metavar="NAME", help="array or column that is the target (default y, or the last)")
@running.header_option
@click.option(
    "--task",
    type=click.Choice(["classes", "numbers"]),
    help="what the target is (default: text is classes, and so are at most 20 different whole numbers up to 50)",
)
@click.option(
    "--size", type=running.COUNT, help="height and width of images (default: those of the images, at most 64)"
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="tokenizer.json for the column of text",
)
@click.option("--seed", type=Integer(min=0), default=0, show_default=True, help="seed of the weights")
@click.option("--out", type=app.NewFile(), default=Path("model.onnx"), show_default=True, help="the file")
@app.as_json
def command(
    network: str,
    data: Path,
    target: str | None,
    header: bool | None,
    task: str | None,
    size: int | None,
    tokenizer: Path | None,
    seed: int,
    out: Path,
    json_output: bool,
) -> None:
    """Write an untrained network, whose inputs and outputs match data, as an ONNX model.

    NETWORK is mlp for rows of numbers, cnn or resnet for images, gru for sequences of rows, transformer for rows of tokens.
    """
    found = fitting.look_at(data, target, header, task, size, tokenizer)
    model = fitting.make_network(network, found, seed)
    make_folder(out.parent, "model")
    write_file(out, "model", model.SerializeToString())
    if json_output:
        app.print_json(
            {"model": out, "network": network, "row": found.row, "outputs": found.outputs, "loss": found.loss}
        )
        return
    named = "" if target is None else f" --target {target}"
    if tokenizer is not None:
        named += f" --tokenizer {tokenizer}"
    click.echo(f"wrote {out}: {network} for {found.shown()}")
    if found.note:
        click.echo(f"note  {found.note}")
    click.echo(f"next  ortrain artifacts {out} --loss {found.loss}")
    click.echo(f"      ortrain train artifacts --data {data}{named} --validation 0.2 --epochs 20")
