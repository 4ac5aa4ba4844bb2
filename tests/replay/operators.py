"""Run a case of the onnx package for each operator, where every case takes too long: `python -m tests.replay.operators`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.conformance import cases, compare, record, runtimes
from tests.conformance.cases import Case


def one_for_each_operator(known: dict[str, str]) -> Iterator[Case]:
    """Yield a case for each operator, without those that are known to fail."""
    seen: set[str] = set()
    for kind in ("node", "sequence"):
        for case in cases.load(kind)[0]:
            # Random values are compared over hundreds of runs, which an emulator takes minutes for.
            if case.id in known or case.draws or seen.issuperset(case.operators):
                continue
            seen.update(case.operators)
            yield case


def main() -> None:
    run = failed = 0
    operators: set[str] = set()
    for case in one_for_each_operator(record.read().known):
        run += 1
        operators.update(case.operators)
        try:
            compare.check(case, runtimes.prepare_ours(case.model))
        except Exception as error:
            failed += 1
            print(f"FAILED {case.id}: {error}")
    print(f"{run - failed} of {run} cases passed, of {len(operators)} operators")
    sys.exit(failed > 0 or run == 0)


if __name__ == "__main__":
    main()
