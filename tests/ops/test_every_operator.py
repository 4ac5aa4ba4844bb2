"""Every operator of the core is part of a model that a test of this folder runs, in `make test` too."""

from __future__ import annotations

import pytest
from gradient_coverage import name_of, registered
from runner import LOADED, WHOLE

#: Their values are strings, sequences or sparse, or passes and artifacts make them: their tests use other sessions than
#: those of runner.py.
ELSEWHERE = {
    "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.TreeEnsemble",
    "com.microsoft.AdamWOptimizer", "com.microsoft.FusedAttention", "com.microsoft.FusedDropoutAttention",
    "com.microsoft.InplaceClipGradNorm", "com.microsoft.SGDOptimizerV2", "com.microsoft.SparseToDenseMatMul",
    "com.microsoft.Tokenizer", "com.microsoft.YieldOp", "ortrain.ObserveRange", "ortrain.StopGradient",
}  # fmt: skip


def test_every_operator_is_run(request: pytest.FixtureRequest) -> None:
    if not request.config.stash[WHOLE]:
        pytest.skip("only a run of all of tests/ops shows it")
    missing = [name_of(key) for key in registered() if key not in LOADED and name_of(key) not in ELSEWHERE]
    assert not missing, f"no test of tests/ops runs {', '.join(missing)}"
