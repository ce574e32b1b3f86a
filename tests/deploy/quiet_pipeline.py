"""The application with pipelines that have no processes, for Serve's config files: `import_path` names `build`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import ray
from ray.serve import Application

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Topology
from deploy import app
from deploy.serving.pipeline import Pipeline

HEARD = "CHARACTERS_TESTS_HEARD"  # names the file that a line is added to for each session that begins


class QuietGang:
    """Takes the place of `actors.pipeline.gang.Gang`; writes down what it is told."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.on_state: Any = None

    def prepare(self) -> None:
        """Nothing to load."""

    def start(self, session: SessionSpec) -> None:
        """It runs until it is stopped."""
        character, llm = session.character, self.topology.profile.voice.llm
        assert character is not None
        told = {
            "persona": character.persona,
            "pitch": character.voice.pitch,
            "bitrate": session.room.bitrate,
            "llm": llm.model,
            "process": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "room": jwt.decode(session.room.token, options={"verify_signature": False})["video"]["room"],
        }
        with Path(os.environ[HEARD]).open("a") as file:
            file.write(json.dumps(told) + "\n")
        self.on_state("running", "started")

    def abandon(self) -> None:
        """Nothing to give up."""

    def renew(self, topology: Topology) -> None:
        """Nothing to replace."""
        self.topology = topology

    def name(self, role: str) -> str:
        """There is no actor."""
        return ""

    def alone(self) -> float:
        """Somebody is in the room."""
        return 0.0

    def ended(self) -> str:
        """It goes on."""
        return ""

    def check(self) -> None:
        """All is well."""

    def stop(self) -> None:
        """Nothing to end."""


class QuietPipeline(Pipeline):
    """The real one, but for its processes."""

    def _make(self) -> Any:
        return QuietGang(self._topology)


def build(args: Mapping[str, Any]) -> Application:
    """See `deploy.app.build`."""
    app.Pipeline = QuietPipeline  # type: ignore[misc]
    return app.build(args)
