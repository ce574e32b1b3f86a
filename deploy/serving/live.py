"""What can be changed while the application runs: Serve's `user_config`. Changes hold for sessions that begin later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from actors.pipeline.session import RoomAddress
from characters.character import Character
from characters.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Live:
    """`user_config` of the ingress.

    Attributes:
        bitrate: bits a second of the video.
        characters: changes of `character.yaml` by the character's slug, e.g. {amara: {greeting: Hello.}}.
    """

    bitrate: int = RoomAddress.bitrate
    characters: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bitrate < 10_000:
            raise ValueError("bitrate must be at least 10000 bits a second")

    def applied(self, slug: str, character: Character) -> Character:
        """The character with its changes.

        Raises:
            UserError: an unknown field, or a value of the wrong type or out of range.
        """
        return changed(character, self.characters.get(slug, {}), f"characters.{slug}")


def changed(base: T, changes: Mapping[str, Any], what: str) -> T:
    """A copy of a dataclass with some fields changed, nested ones too.

    Args:
        base: the dataclass.
        changes: new values by field.
        what: the dataclass is, for error messages.

    Raises:
        UserError: an unknown field, or a value of the wrong type or out of range.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(base), changes)
        found: T = OmegaConf.to_object(merged)  # type: ignore[assignment]
        return found
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"user_config: {what}: {str(error).splitlines()[0]}") from None
