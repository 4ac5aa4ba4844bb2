"""``ortrain compat``."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import click

from ortrain import _ortrain
from ortrain._support.counts import counted
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

    For an operator that is decomposed, the table shows the operators of the training model that replace its first node.
    --json has them for each node. The command tries to train the model with a mean squared error on its first
    floating-point output; the exit status is 3 if that fails.
    """
    try:
        from ortrain.artifacts.loading import load
        from ortrain.trainer.creation import floating_outputs, make_artifacts
    except ImportError as error:
        raise ImportError("compat needs onnx: pip install 'ortrain[artifacts]'") from error
    known = {}
    for line in _ortrain.list_operators().splitlines():
        domain, name, trains = line.split(",")
        known[domain, name] = trains
    given = load(str(model))[0]
    taken = {node.name for node in given.graph.node}
    for number, node in enumerate(given.graph.node):
        if not node.name:  # the names of new nodes show from which node they come
            node.name = next(name for i in count() if (name := f"{node.op_type}_{number + i}") not in taken)
            taken.add(node.name)
    keys = [("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in given.graph.node]
    reason, trained = "", 0
    became: dict[str, list[str]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            output = next(iter(floating_outputs(given.graph)), None)
            trained = len(make_artifacts(given, "mse", "sgd", Path(folder), None, None, output).trained)
            became = _became(load(f"{folder}/training_model.onnx")[0])
    except (ValueError, LookupError) as error:
        reason = str(error)
    nodes = [
        {
            "name": node.name,
            "operator": ".".join(filter(None, key)),
            "runs": key in known,
            "trains": _TRAINS[known.get(key, "no")],
            "becomes": became.get(node.name, []),
        }
        for node, key in zip(given.graph.node, keys, strict=True)
    ]
    operators = [
        {
            "domain": domain,
            "name": name,
            "nodes": number,
            "runs": (domain, name) in known,
            "trains": _TRAINS[known.get((domain, name), "no")],
            "becomes": nodes[keys.index((domain, name))]["becomes"],
        }
        for (domain, name), number in sorted(Counter(keys).items())
    ]
    if json_output:
        app.print_json(
            {
                "trains": not reason,
                "reason": reason,
                "trained": trained,
                "operators": operators,
                "nodes": nodes,
            }
        )
    else:
        rows = [("operator", "nodes", "runs", "trains", "becomes")]
        rows += [
            (
                f"{row['domain']}.{row['name']}" if row["domain"] else str(row["name"]),
                str(row["nodes"]),
                "yes" if row["runs"] else "NO",
                str(row["trains"]),
                ", ".join(row["becomes"]),
            )
            for row in operators
        ]
        click.echo(app.table(rows))
        click.echo(
            f"the model cannot be trained: {reason}"
            if reason
            else f"the model trains: {counted(trained, 'parameter')}"
        )
    return app.NO if reason else app.OK


def _became(training_model: Any) -> dict[str, list[str]]:
    """Return, by the name of a decomposed node, the operators that a training model has instead of it.

    Nodes that a decomposition writes are named after the decomposed node; those of gradients have ``_Grad`` in front of the
    slash.
    """
    found: dict[str, list[str]] = {}
    for node in training_model.graph.node:
        name, slash, _ = node.name.rpartition("/")
        if slash and not name.endswith("_Grad"):
            found.setdefault(name, []).append(node.op_type)
    return found
