"""Entries of the configuration of a session, where only entries that have an effect are useful.

``SessionOptions.add_session_config_entry`` keeps any key that does not begin with ``ortrain.``, as onnxruntime does, because
custom operators may read it. A run of the trainer or of the command has no such reader: there, an unknown key is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortrain._support.generated.session_config import IGNORED, OF_RUNS, PREFIXES, USED
from ortrain._support.suggestions import did_you_mean

_OWN = "ortrain."


def used_entries(config: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the entries that a session uses, and the keys that have no effect.

    Parameters
    ----------
    config : mapping of str to str
        Entries of the configuration. The session itself checks the keys that begin with ``ortrain.``, and the values.

    Returns
    -------
    used : dict of str to str
        The entries that have an effect, in the given order.
    ignored : list of str
        The keys of onnxruntime that have no effect here.

    Raises
    ------
    ValueError
        If neither ortrain nor onnxruntime has an entry of this name for sessions.
    """
    ignored = [key for key in config if key in IGNORED]
    used = {key: value for key, value in config.items() if key not in IGNORED}
    for key in used:
        if key in OF_RUNS:
            raise ValueError(
                f"the entry {key!r} belongs to the options of a single run, not to those of a session"
            )
        if key not in USED and not key.startswith(_OWN):
            near = did_you_mean(key, (*USED, *IGNORED))
            names = (*USED, *(f"{prefix}NAME" for prefix in PREFIXES))
            raise ValueError(
                f"unknown session config entry {key!r}{near or '; the known entries are ' + ', '.join(names)}"
            )
    return used, ignored


def without_effect(keys: list[str]) -> str:
    """Return the sentence that names entries without an effect."""
    return (
        f"{', '.join(keys)}: ortrain accepts {'this entry' if len(keys) == 1 else 'these entries'} of onnxruntime but does not "
        "use the value"
    )
