"""The parts of a log that are read only when a page shows them. Values of the wrong type are left out."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

from ortrain.dashboard.logs import Log, number

_MOST_SNAPSHOTS = 60
_MOST_SAMPLES = 200
_MOST_ROWS = 500
_MOST_CLASSES = 1000  # with names
_MOST_COUNTED = 100  # classes in a confusion matrix


def _real(value: Any) -> float | None:
    found = number(value)
    return None if found is None or math.isnan(found) else found


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _summary(value: Any, counts: bool) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = {key: _real(value.get(key)) for key in ("norm", "min", "max")}
    found["not_finite"] = _real(value.get("not_finite")) or 0
    if counts:
        given = value.get("counts")
        found["counts"] = [_real(count) or 0 for count in given[:1000]] if isinstance(given, list) else []
    return found


def _layers_of(entry: dict[str, Any]) -> dict[str, Any]:
    layers = entry.get("layers")
    return (
        {name: layer for name, layer in layers.items() if isinstance(layer, dict)}
        if isinstance(layers, dict)
        else {}
    )


def layers(log: Log) -> dict[str, Any]:
    """Return the parameters that the last snapshot has, with the norms in it."""
    places = log.details["layers"]
    rows = [
        {
            "name": name,
            **{kind: _summary(layer.get(kind), counts=False) for kind in ("parameter", "gradient")},
        }
        for name, layer in (_layers_of(log.detail(places[-1])) if places else {}).items()
    ]
    return {"step": places[-1].step if places else None, "snapshots": len(places), "layers": rows}


def layer(log: Log, name: str) -> dict[str, Any]:
    """Return norms and histograms of one parameter and its gradient in the snapshots, at most 60 of them."""
    places = log.details["layers"]
    stride = -(-len(places) // _MOST_SNAPSHOTS) or 1
    chosen = places[::-1][::stride][::-1]  # from the end, so that the last place is kept
    found = []
    for place in chosen:
        described = _layers_of(log.detail(place)).get(name)
        if described is not None:
            kinds = {kind: _summary(described.get(kind), counts=True) for kind in ("parameter", "gradient")}
            found.append({"step": place.step, "epoch": place.epoch, **kinds})
    return {"name": name, "snapshots": found}


def profile(log: Log) -> dict[str, Any]:
    """Return the last profile."""
    places = log.details["profile"]
    entry = log.detail(places[-1]) if places else {}
    found: dict[str, Any] = {"step": places[-1].step if places else None}
    for key in ("steps", "milliseconds", "arena_bytes", "live_bytes"):
        found[key] = _real(entry.get(key))
    for kind in ("operators", "nodes"):
        found[kind] = [
            {
                "name": str(row["name"]),
                "calls": _real(row.get("calls")),
                "milliseconds": _real(row["milliseconds"]),
            }
            for row in _dicts(entry.get(kind))[:_MOST_ROWS]
            if "name" in row and _real(row.get("milliseconds")) is not None
        ]
    return found


def samples(log: Log, index: int | None) -> dict[str, Any]:
    """Return what a validation found, by default the last: misread rows and confusion, errors of numbers, a map of rows."""
    known = log.validations
    chosen = len(known) - 1 if index is None else index
    validations = [{"step": step, "epoch": epoch} for step, epoch in known]
    if not 0 <= chosen < len(known):
        return {"validations": validations, "index": None, "samples": []}
    kinds = ("samples", "confusion", "regression", "projection")
    entry, counted, numbers, places = (_of_step(log, kind, known[chosen][0]) for kind in kinds)
    return {
        "validations": validations,
        "index": chosen,
        "input": str(entry.get("input", "")),
        "classes": _names(log.begin.get("classes")),
        "confusion": _matrix(counted.get("counts")),
        "rows": _real({**counted, **entry}.get("rows")),
        "wrong": _real({**counted, **entry}.get("wrong")),
        "samples": _samples(entry.get("samples")),
        "regression": _regression(numbers),
        "projection": _projection(places),
    }


def _samples(value: Any) -> list[dict[str, Any]]:
    return [found for sample in _dicts(value)[:_MOST_SAMPLES] if (found := _sample(sample)) is not None]


def _regression(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return predicted numbers with the actual ones and the largest errors; None if there are none."""
    points = entry.get("points")
    if not isinstance(points, dict):
        return None
    columns = [_numbers(points.get(name)) for name in ("expected", "predicted", "row")]
    return {
        "rows": _real(entry.get("rows")),
        "error": _real(entry.get("error")),
        "points": [list(point) for point in zip(*columns, strict=False) if None not in point],
        "samples": _samples(entry.get("samples")),
    }


def _projection(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return the positions of rows in projections of inputs and outputs; None if there are none."""
    of = entry.get("of")
    if not isinstance(of, dict):
        return None
    expected, rows = _numbers(entry.get("expected")), _numbers(entry.get("row"))
    found: dict[str, Any] = {}
    for name in ("inputs", "outputs"):
        part = of.get(name)
        if not isinstance(part, dict) or not isinstance(part.get("points"), list):
            continue
        points = [_numbers(point) for point in part["points"][:_MOST_ROWS]]
        known = [
            [*point, label, row]
            for point, label, row in zip(points, expected, rows, strict=False)
            if len(point) == 2 and None not in point
        ]
        found[name] = {"points": known, "variance": _numbers(part.get("variance"))[:2]}
    return found or None


def _numbers(value: Any) -> list[float | None]:
    return [_real(each) for each in value[:_MOST_ROWS]] if isinstance(value, list) else []


def _of_step(log: Log, kind: str, step: int) -> dict[str, Any]:
    """Return the last detail of a kind that was written at a step; an empty one if there is none."""
    places = [place for place in log.details[kind] if place.step == step]
    return log.detail(places[-1]) if places else {}


def _names(value: Any) -> list[str]:
    return [str(name)[:100] for name in value[:_MOST_CLASSES]] if isinstance(value, list) else []


def _matrix(value: Any) -> list[list[int]] | None:
    """Return a square matrix of counts; None if the value is something else."""
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_COUNTED:
        return None
    for row in value:
        if not isinstance(row, list) or len(row) != len(value):
            return None
        if not all(type(count) is int and 0 <= count < 1 << 53 for count in row):
            return None
    return value


def _sample(sample: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {
        key: _real(sample.get(key)) for key in ("row", "predicted", "expected", "margin")
    }
    shape = sample.get("shape")
    if not isinstance(shape, list) or not all(isinstance(n, int) and 0 <= n < 1 << 31 for n in shape):
        return None
    found["shape"] = shape
    if isinstance(sample.get("values"), list):
        if isinstance(sample.get("tokens"), list):
            found["tokens"] = [str(token)[:100] for token in sample["tokens"][:1000]]
        return {**found, "values": [_real(value) for value in sample["values"][:1000]]}
    try:
        pixels = base64.b64decode(sample.get("pixels", ""), validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None
    if len(shape) != 3 or shape[0] not in (1, 3) or math.prod(shape) != len(pixels):
        return None
    return {
        **found,
        "pixels": sample["pixels"],
        "low": _real(sample.get("low")),
        "high": _real(sample.get("high")),
    }
