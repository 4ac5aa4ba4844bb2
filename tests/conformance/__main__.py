"""Runs the cases in both libraries: ``python -m tests.conformance [--only ortrain] [-k substring]``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection

from . import cases, compare, record, runtimes
from .cases import Case

LIMIT = 120
"""Seconds after which a case counts as hanging."""

Outcome = dict[str, tuple[str, list[str]]]
"""Reason and operators of the cases that failed, by their id."""


def _work(runtime: str, todo: list[Case], results: Connection) -> None:
    """Run cases one after another, and send the reason why each fails, or an empty string."""
    for case in todo:
        try:
            compare.check(case, runtimes.PREPARE[runtime](case.model))
        except Exception as error:
            results.send(compare.reason(error))
        else:
            results.send("")
    results.close()


def measure(runtime: str, todo: list[Case]) -> Outcome:
    """Run cases in another process, because a case may crash it."""
    failed: Outcome = {}
    context = multiprocessing.get_context("fork")
    while todo:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(runtime, todo, sender))
        process.start()
        sender.close()
        done = 0
        why = ""
        try:
            while done < len(todo):
                if not receiver.poll(LIMIT):
                    why = "does not end"
                    process.kill()
                    break
                reason = receiver.recv()
                if reason:
                    failed[todo[done].id] = (reason, todo[done].operators)
                done += 1
        except EOFError:
            process.join()
            why = f"ends the process with code {process.exitcode}"
        process.join()
        if why:
            failed[todo[done].id] = (why, todo[done].operators)
            done += 1
        todo = todo[done:]
    return failed


def main() -> int:
    """Run the cases given by the command line; if these are all cases, write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "-k", default="", metavar="SUBSTRING", help="only cases whose id contains it; writes nothing"
    )
    parser.add_argument(
        "--only", choices=runtimes.PREPARE, help="one library; with ortrain, the other's numbers stay"
    )
    parser.add_argument("--names", action="store_true", help="name the cases that fail")
    options = parser.parse_args()
    loaded = {kind: cases.load(kind) for kind in cases.KINDS}
    chosen = [case for found, _ in loaded.values() for case in found if options.k in case.id]
    wanted = [options.only] if options.only else list(runtimes.PREPARE)
    with ThreadPoolExecutor() as pool:
        outcomes = dict(zip(wanted, pool.map(lambda runtime: measure(runtime, chosen), wanted), strict=True))
    for runtime, failed in outcomes.items():
        print(f"{runtime}: {len(chosen) - len(failed)} of {len(chosen)} pass")
        for failure in record.grouped(failed):
            shown = failure.cases if options.names else failure.cases[:3]
            print(f"  {len(failure.cases):4} {failure.reason} | {' '.join(shown)}")
    if options.k or options.only == "onnxruntime":
        return 0
    former = record.read() if options.only else None
    kinds = {}
    for kind, (found, left_out) in loaded.items():
        kinds[kind] = {"cases": len(found), "left_out": left_out}
        for runtime in runtimes.PREPARE:
            if runtime in outcomes:
                count = sum(case.id not in outcomes[runtime] for case in found)
            else:
                assert former is not None
                count = former.kinds[kind][runtime]
            kinds[kind][runtime] = count
    stock = former.stock_failures if former else record.counted(outcomes["onnxruntime"])
    record.write(
        record.Record(
            versions=former.versions if former else {name: version(name) for name in record.PACKAGES},
            kinds=kinds,
            failures=record.grouped(outcomes["ortrain"]),
            stock_failures=stock,
            drawing=sum(bool(case.draws) for case in chosen),
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
