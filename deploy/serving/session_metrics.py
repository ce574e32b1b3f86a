"""Metrics of sessions and queue. Ray puts `ray_` before their names for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from pathlib import Path

from ray.util.metrics import Counter, Gauge, Histogram

from actors.pipeline.topology import Profile
from deploy.serving.sessions import Session, State

_JOIN_SECONDS = [0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0]


class SessionMetrics:
    """The metrics of one application, tagged by model and plan, never by room.

    Args:
        profile: what its pipelines run.
    """

    def __init__(self, profile: Profile) -> None:
        plan = profile.plan
        tags = {"plan": f"{plan.pipeline}x{plan.sequence}+{plan.decoder}", "model": Path(profile.model).stem}
        keys = tuple(tags)
        self._sessions = Gauge(
            "characters_sessions", "Sessions by state; sessions that are over, for ten minutes", ("state", *keys)
        ).set_default_tags(tags)
        self._pipelines = Gauge("characters_pipelines", "Pipelines that can run sessions", keys).set_default_tags(tags)
        self._longest_wait = Gauge(
            "characters_longest_wait_seconds", "Seconds that the first in the queue has waited", keys
        ).set_default_tags(tags)
        self._refused = Counter(
            "characters_refused_sessions", "Sessions not let in, by the API's code", ("reason", *keys)
        ).set_default_tags(tags)

        self._joins = Histogram(
            "characters_join_seconds",
            "Seconds from the request for a session to the character in its room, by the API that it came by",
            _JOIN_SECONDS,
            ("dialect", *keys),
        ).set_default_tags(tags)

    def observe(self, sessions: Sequence[Session], pipelines: int, now: float) -> None:
        """Set the gauges.

        Args:
            sessions: all known ones.
            pipelines: how many can run sessions.
            now: seconds by the sessions' clock.
        """
        states = Tally(session.state for session in sessions)
        for state in State:
            self._sessions.set(states[state], {"state": state})
        self._pipelines.set(pipelines)
        waits = [now - session.created for session in sessions if session.state is State.NOT_READY]
        self._longest_wait.set(max(waits, default=0.0))

    def refused(self, reason: str) -> None:
        """Count a session that was not admitted."""
        self._refused.inc(tags={"reason": reason})

    def joined(self, dialect: str, seconds: float) -> None:
        """The character of a session has joined its room. `dialect`: see `Session.dialect`."""
        self._joins.observe(seconds, {"dialect": dialect or "characters"})
