"""Records that outlive the process that wrote them: the sessions, and which pipeline runs which session.

They are kept in Ray's key-value store, which lives as long as the cluster (with Redis behind it, longer than its head).
The ingress writes the sessions and the pipelines write their runs. So an ingress that replaces a dead one finds both,
and a pipeline learns that its session is over even if the cancellation of its call was lost.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ray.experimental import internal_kv

_NAMESPACE = "characters"


class Store(Protocol):
    """Texts by key."""

    def put(self, key: str, value: str) -> None:
        """Set the text of a key."""
        ...

    def get(self, key: str) -> str | None:
        """The text of a key; None if there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key; a key that is not there is no error."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`."""
        ...


class ClusterStore:
    """The store of the Ray cluster that this process belongs to. Every call asks the head: about a millisecond."""

    def put(self, key: str, value: str) -> None:
        """See `Store.put`."""
        internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)

    def get(self, key: str) -> str | None:
        """See `Store.get`."""
        found = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        return None if found is None else found.decode()

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        internal_kv._internal_kv_del(key, namespace=_NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        """See `Store.keys`."""
        return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE)]


@dataclass(frozen=True, slots=True)
class Run:
    """What a pipeline does with a session.

    Attributes:
        pipeline: name of the Serve replica.
        state: see `actors.pipeline.gang.State`.
        reason: of the state.
        room: name of the actor that holds the room; "" if there is none now.
    """

    pipeline: str
    state: str
    reason: str = ""
    room: str = ""


class Records:
    """The records of one application.

    Args:
        application: its name in Serve.
        store: where they are kept.
    """

    def __init__(self, application: str, store: Store) -> None:
        self._sessions, self._runs = f"{application}/sessions/", f"{application}/runs/"
        self._store = store

    def save(self, key: str, session: dict[str, Any]) -> None:
        """Write down a session as it is now. Only its field "over" is read here."""
        self._store.put(self._sessions + key, json.dumps(session))

    def forget(self, key: str) -> None:
        """Remove a session that nobody will ask for again."""
        self._store.delete(self._sessions + key)

    def sessions(self) -> list[dict[str, Any]]:
        """All recorded sessions."""
        found = [self._store.get(key) for key in self._store.keys(self._sessions)]
        return [json.loads(text) for text in found if text]

    def over(self, key: str) -> bool:
        """Whether a session is recorded as over."""
        found = self._store.get(self._sessions + key)
        return found is not None and bool(json.loads(found)["over"])

    def report(self, key: str, run: Run | None) -> None:
        """Write down what a pipeline does with a session; None if the pipeline has let go of it."""
        if run is None:
            self._store.delete(self._runs + key)
        else:
            self._store.put(self._runs + key, json.dumps(asdict(run)))

    def run(self, key: str) -> Run | None:
        """What a pipeline does with a session; None if no pipeline has it."""
        found = self._store.get(self._runs + key)
        return None if found is None else Run(**json.loads(found))
