"""Names of runs that people can say and remember."""

from __future__ import annotations

import secrets

# fmt: off
_FIRST = [
    "amber", "brave", "bright", "calm", "clever", "cosy", "crisp", "early", "easy", "fair", "fleet",
    "gentle", "glad", "golden", "green", "happy", "humble", "keen", "kind", "late", "light", "lively",
    "lucky", "mellow", "mild", "misty", "nimble", "noble", "odd", "patient", "plain", "proud", "quick",
    "quiet", "rapid", "ready", "round", "rustic", "silent", "silver", "simple", "sleepy", "smooth",
    "snowy", "solid", "spry", "steady", "sunny", "swift", "tidy", "warm", "wise", "witty", "young",
]
_SECOND = [
    "acorn", "aspen", "badger", "beacon", "birch", "brook", "canyon", "cedar", "cloud", "clover",
    "comet", "coral", "crane", "creek", "dune", "ember", "falcon", "fern", "finch", "fjord", "forest",
    "fox", "garden", "glacier", "harbor", "hare", "hazel", "heron", "hill", "ibis", "island", "ivy",
    "juniper", "lake", "lark", "lynx", "maple", "marten", "meadow", "moon", "moss", "otter", "owl",
    "pebble", "pine", "plover", "pond", "raven", "reef", "ridge", "river", "robin", "sparrow", "stone",
    "swan", "thistle", "tide", "valley", "willow", "wren",
]
# fmt: on


def two_words() -> str:
    """Return a name such as quiet-otter, which is random and does not depend on the seed of a run."""
    return f"{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}"
