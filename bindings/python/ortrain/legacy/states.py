"""States of a session with a training graph."""

from __future__ import annotations

from ortrain import _ortrain


def session_states(session: _ortrain.SessionHandle) -> list[tuple[str, str, str]]:
    """Return name, role and weight of each state of a session with a training graph, sorted by name."""
    return [
        (
            _ortrain.session_get_state_name(session, i),
            _ortrain.session_get_state_role(session, i),
            _ortrain.session_get_state_weight(session, i),
        )
        for i in range(_ortrain.session_get_state_count(session))
    ]
