"""Tool calls put together from a stream. Servers number them by index, by id, by neither, or all alike."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from actors.voice.protocols import ToolCall
from characters.errors import UserError

_LONGEST_ARGUMENTS = 20_000


@dataclass
class _Call:
    key: tuple[int | None, str]
    name: str = ""
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """Whether its arguments are complete."""
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True


class ToolCalls:
    """Collects the calls of one reply.

    Args:
        names: of the tools that were offered.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._calls: list[_Call] = []

    def add(self, piece: Any) -> None:
        """One piece of a streamed call, in the client's form.

        Raises:
            UserError: a call has no end.
        """
        function = getattr(piece, "function", None)
        name, arguments = getattr(function, "name", None) or "", getattr(function, "arguments", None) or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        call = self._find(getattr(piece, "index", None), getattr(piece, "id", None) or "", name)
        if call.name != name:
            call.name += name
        call.arguments += arguments
        if len(call.arguments) > _LONGEST_ARGUMENTS:
            raise UserError("the language model wrote a tool call without end")

    def add_text(self, text: str) -> None:
        """A call that the server left in the text, as JSON with name and arguments; what is none is left out."""
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if isinstance(name, str):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            self._calls.append(_Call((None, ""), name, text))

    def finished(self) -> list[ToolCall]:
        """All calls, in the order in which they began, each with an id of its own."""
        found, taken = [], set[str]()
        for number, call in enumerate(self._calls):
            own = call.key[1]
            if not own or own in taken:
                own = f"call_{number}"
            taken.add(own)
            found.append(ToolCall(own, call.name, call.arguments))
        return found

    def _find(self, index: int | None, id: str, name: str) -> _Call:
        """The call that a piece belongs to."""
        key = index, id
        for call in reversed(self._calls):
            same = call.key == key if id else index is None or call.key[0] == index
            if not same:
                continue
            again = name in self._names and call.name in self._names and (name != call.name or call.whole)
            if not again:
                return call
            break
        call = _Call(key)
        self._calls.append(call)
        return call
