"""What does not make sense on several processes is refused, on all of them, with the reason."""

from __future__ import annotations

import json
import pathlib

import pytest
from launch import mpiexec, run

pytestmark = pytest.mark.thorough

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "refuse.py"
PIPELINE = {"pipeline_parallel_size": 2}
HORIZONTAL = {"horizontal_parallel_size": 2}
DATA = {"allreduce_post_accumulation": True}

CASES = [
    ({"world_size": 3, **DATA}, "rank 0 of 2|rank 1 of 2"),
    ({"data_parallel_size": 2}, "expected allreduce_post_accumulation or enable_adasum"),
    ({"deepspeed_zero_stage": 1}, "with deepspeed_zero_stage: expected allreduce_post_accumulation"),
    ({"deepspeed_zero_stage": 1, "enable_adasum": True, **DATA}, "exclude each other"),
    ({"data_parallel_size": 2, **PIPELINE, "pipeline_cut_info_string": "h"}, "2 \\* 1 \\* 2 = 4"),
    ({**HORIZONTAL, "enable_adasum": True}, "have the whole model, found horizontal_parallel_size 2"),
    (
        {**DATA, "deepspeed_zero_stage": 1, "training_optimizer_name": "LambOptimizer"},
        "LambOptimizer needs the norm",
    ),
    ({**HORIZONTAL, "loss_output_name": "h"}, "no part of the model can be divided"),
    ({**PIPELINE}, "expected 1 cut"),
    (
        {**PIPELINE, "pipeline_cut_info_string": "h,p0"},
        "expected 1 cut with pipeline_parallel_size 2, found 2",
    ),
    ({**PIPELINE, "pipeline_cut_info_string": "nope"}, 'computes the value "nope"'),
    ({**PIPELINE, "pipeline_cut_info_string": "h-nope"}, 'no node "nope" reads "h" after cut 1'),
    ({**PIPELINE, "pipeline_cut_info_string": "loss"}, "expected in the last one"),
    (
        {**PIPELINE, "pipeline_cut_info_string": "h", "enable_adasum": True},
        "found .* pipeline_parallel_size 2",
    ),
    ({"set_gradients_as_graph_outputs": True, **DATA}, "expected one process, found world_size 2"),
    ({**HORIZONTAL, **PIPELINE}, "is not a multiple of horizontal_parallel_size"),
    (
        {**DATA, "of rank 1": {"gradient_accumulation_steps": 2}},
        "gradient_accumulation_steps differs: 1 on rank 0, 2 on rank 1",
    ),
    (
        {**DATA, "wire of rank 1": "bfloat16"},
        "ortrain.gradient_type differs: float32 on rank 0, bfloat16 on rank 1",
    ),
    ({**DATA, "bound": {"inputs": ["x", "y"], "outputs": ["loss"]}}, "Missing Input: Learning_Rate"),
    ({**DATA, "bound": {"inputs": ["x"], "outputs": []}}, "no output is bound"),
]


def test_refused_combinations() -> None:
    printed = run(2, PROGRAM, json.dumps(CASES))
    assert printed.count("refused") == 2 * len(CASES), printed


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"num_pipeline_micro_batches": 3}, "3 micro-batches cannot share"),
        ({"sliced_axes": {"x": -1}}, "expected an axis of 'x'"),
        ({"sliced_schema": {"x": [3, 4]}}, "expected \\[3, 4\\] for a micro-batch of 'x'"),
    ],
)
def test_batches_that_cannot_be_cut(members: dict[str, object], message: str) -> None:
    case = ({**PIPELINE, "pipeline_cut_info_string": "h", **members}, message)
    done = mpiexec(2, PROGRAM, json.dumps([case]))
    assert "refused" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"weights_not_to_train": ["b1"]}, "the list of trained weights .* differs"),
        ({"floats": {"alpha": 0.5}}, "the list of trained weights and their attributes differs"),
    ],
)
def test_weights_that_differ_between_ranks(own: dict[str, object], message: str) -> None:
    done = mpiexec(2, PROGRAM, json.dumps([({**DATA, "of rank 1": own}, message)]))
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
