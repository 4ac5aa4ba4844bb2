"""``ortrain compat``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from ortrain import _ortrain
from ortrain.cli import app

_TRAINS = {
    "yes": "yes",
    "decomposed": "yes, by other operators",
    "stop": "gradients end here",
    "no": "no",
}


@app.command(
    "compat",
    """
    ortrain compat model.onnx
    ortrain compat model.onnx --json
    """,
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@app.as_json
def command(model: Path, json_output: bool) -> int:
    """Show which operators of the inference model MODEL run and train, and whether the whole model trains.

    Whether it does is tried with a mean squared error on its first output. The exit status is 3 if it does not.
    """
    try:
        from ortrain import artifacts
        from ortrain.trainer.core import make_artifacts
    except ImportError as error:
        raise ImportError("compat needs onnx: pip install 'ortrain[artifacts]'") from error
    known = {}
    for line in _ortrain.list_operators().splitlines():
        domain, name, trains = line.split(",")
        known[domain, name] = trains
    counts: dict[tuple[str, str], int] = {}
    for node in artifacts._load(str(model))[0].graph.node:
        key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        counts[key] = counts.get(key, 0) + 1
    operators = [
        {
            "domain": domain,
            "name": name,
            "nodes": count,
            "runs": (domain, name) in known,
            "trains": _TRAINS[known.get((domain, name), "no")],
        }
        for (domain, name), count in sorted(counts.items())
    ]
    reason, trained = "", 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            trained = len(make_artifacts(str(model), "mse", "sgd", Path(folder), None, None).trained)
    except (ValueError, LookupError) as error:
        reason = str(error)
    if json_output:
        app.print_json({"trains": not reason, "reason": reason, "trained": trained, "operators": operators})
    else:
        rows = [("operator", "nodes", "runs", "trains")]
        rows += [
            (
                f"{row['domain']}.{row['name']}" if row["domain"] else str(row["name"]),
                str(row["nodes"]),
                "yes" if row["runs"] else "NO",
                str(row["trains"]),
            )
            for row in operators
        ]
        click.echo(app.table(rows))
        click.echo(
            f"the model cannot be trained: {reason}" if reason else f"the model trains: {trained} parameters"
        )
    return app.NO if reason else app.OK
