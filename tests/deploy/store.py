"""The cluster's memory, without a cluster."""

from __future__ import annotations


class FakeStore:
    """A dictionary in place of the cluster's store."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.put = self.held.__setitem__
        self.get = self.held.get

    def delete(self, key: str) -> None:
        self.held.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.held if key.startswith(prefix)]
