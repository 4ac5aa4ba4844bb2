"""``ortrain profile``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ortrain import profiling
from ortrain._files.reading import read_npz
from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain.cli import app, running


@app.command(
    "profile",
    """
    ortrain profile artifacts
    ortrain profile artifacts --batch 64 --by-node --limit 20 --trace trace.json
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--steps", type=running.COUNT, default=20, show_default=True, help="recorded steps")
@click.option(
    "--batch",
    type=running.COUNT,
    default=16,
    show_default=True,
    help="size of dimensions that the model does not fix",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="NPZ",
    help="arrays by input name; other inputs are random",
)
@click.option("--by-node", is_flag=True, help="one row per node instead of per operator")
@click.option("--limit", type=int, default=0, metavar="N", help="show N rows (default all)")
@click.option(
    "--trace",
    type=app.NewFile(),
    metavar="JSON",
    help="also write a file in Chrome's trace event format",
)
@click.option("--threads", type=int, default=0, help="threads of a step (default one per processor)")
@running.config_option
@app.as_json
def command(
    folder: Path,
    steps: int,
    batch: int,
    inputs: Path | None,
    by_node: bool,
    limit: int,
    trace: Path | None,
    threads: int,
    config: dict[str, str],
    json_output: bool,
) -> None:
    """Show where the time of a training step goes.

    The command runs some steps of the artifacts in DIR, on random data unless --inputs is given. It changes nothing in DIR.
    """
    running.artifacts_folder(folder)
    given = read_npz(inputs, "--inputs") if inputs is not None else {}
    recorded = profiling.record(folder, steps, batch, given, threads, config)
    if trace is not None:
        write_file(trace, "trace", json.dumps(recorded))
    rows, total = profiling.summarize(recorded, by_node)
    if json_output:
        shown = [vars(row) for row in (rows[:limit] if limit else rows)]
        app.print_json({"milliseconds": total, "rows": shown})
        return
    click.echo(f"{folder}: mean of {counted(steps, 'step')}, batch {batch}")
    click.echo(profiling.table(rows, total, limit))
    click.echo(profiling.memory_line(recorded))
    if trace is not None:
        click.echo(f"trace: {trace} (open it in chrome://tracing or Perfetto)")
