"""Writes docs/configuration.md from the schemas: `python -m deploy.cli.reference`.

Every key's meaning is what the schema's docstring says below `Attributes:`, so a key cannot be added without one.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from actors.pipeline.topology import Profile
from actors.voice.config import VoiceConfig
from characters.character import Character
from characters.config import conf_names
from characters.model.config import ModelConfig
from characters.training.recipe import Recipe
from deploy.planning.rates import Rates
from deploy.planning.waiting import AdmissionConfig
from deploy.serving.live import Live
from deploy.serving.settings import SECRETS, Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


@dataclass(frozen=True)
class Section:
    """One schema on the page.

    Attributes:
        title: heading.
        schema: dataclass.
        intro: what stands before the table.
        folder: of conf, if files of it ship.
        skip: fields that are not set in this way.
    """

    title: str
    schema: type
    intro: str
    folder: str = ""
    skip: tuple[str, ...] = ()


SECTIONS = (
    Section(
        "Application",
        Settings,
        "Settings of `serve run deploy.app:build key=value ...`. `characters up` sets `profile`, `pipelines` and "
        "`http_port` by options of its own. Secrets come from [environment variables](#environment-variables) only.",
        skip=SECRETS,
    ),
    Section(
        "Deploy profile",
        Profile,
        "What one session runs on: `conf/deploy/NAME.yaml`. The setting `profile` takes a name or a path.",
        folder="deploy",
    ),
    Section(
        "Voice",
        VoiceConfig,
        "How the character hears, thinks and speaks: `voice` of a deploy profile. Serve's `user_config` of the "
        "deployment `Pipeline` takes the same keys, and changes them for sessions that begin later.",
    ),
    Section(
        "Admission",
        AdmissionConfig,
        "Who may come in and who may wait: `conf/admission/NAME.yaml`. The setting `admission` takes a name or a path.",
        folder="admission",
    ),
    Section(
        "Changes while the application runs",
        Live,
        "Serve's `user_config` of the deployment `Ingress`. A change holds for sessions that begin later.",
    ),
    Section("Character", Character, "A character's folder holds its portrait and this `character.yaml`."),
    Section(
        "Model",
        ModelConfig,
        "Sizes of a model: `conf/model/NAME.yaml`. `model` of a deploy profile or a recipe, and `--model`, take a name "
        "or a path.",
        folder="model",
    ),
    Section(
        "GPU rates",
        Rates,
        "How fast one kind of GPU is: `conf/gpus/NAME.yaml`, for the planner. `characters calibrate` writes one.",
        folder="gpus",
    ),
    Section(
        "Training recipe",
        Recipe,
        "What the weights become: `conf/train/NAME.yaml`. `characters train --recipe` takes a name or a path.",
        folder="train",
    ),
)

VARIABLES = {
    "The application": {
        "CHARACTERS_API_KEY": "The API asks for this key if it is set; `characters loadtest` sends it.",
        "CHARACTERS_API_KEYS": 'More keys, with the names of their holders: "name:key name:key"; see `tenants` above.',
        "LIVEKIT_URL": "Address of a LiveKit server, ws:// or wss://; without it the application starts its own.",
        "LIVEKIT_API_KEY": "Key of the LiveKit server; random for a server of its own.",
        "LIVEKIT_API_SECRET": "Secret of that key; at least 32 characters for a server of its own.",
        "LIVEKIT_PUBLIC_URL": "Address of the LiveKit server that browsers are told; LIVEKIT_URL by default.",
        "OPENAI_API_KEY": "Key of a speech or language server; `key_variable` of the [voice](#voice) names another "
        "variable.",
        "XDG_DATA_HOME": "Your own characters live in `$XDG_DATA_HOME/characters`, models in "
        "`$XDG_DATA_HOME/characters-models`; `~/.local/share` by default.",
        "CHARACTERS_MODELS": "Folder where `characters models` keeps what it brings, on every machine of a cluster.",
    },
    "The command line and training": {
        "HF_ENDPOINT": "The hub that `characters models get` asks; `https://huggingface.co` by default.",
        "CHARACTERS_C2PA_CERTIFICATE": "PEM file with a certificate for C2PA claims and those above it: rendered files "
        "are signed with it. Needs the extra `c2pa`.",
        "CHARACTERS_C2PA_KEY": "PEM file with that certificate's private key, without a password.",
        "RAY_DASHBOARD_ADDRESS": "Ray's dashboard for `characters status` and `characters scale`; "
        "`http://127.0.0.1:8265` by default.",
        "RAY_AUTH_TOKEN": "Token of the Ray cluster. `characters up` makes one and prints it.",
        "WORLD_SIZE": "Processes of a training run; set by torchrun.",
        "RANK": "Number of this process in it; set by torchrun.",
        "LOCAL_RANK": "GPU of this process; set by torchrun.",
        "CUDA_VISIBLE_DEVICES": "GPUs that a benchmark of several processes may use.",
        "TRITON_INTERPRET": '"1" runs the Triton kernels on a CPU, for tests.',
    },
    "The compose file": {
        "PROFILE": "Setting `profile`.",
        "PIPELINES": "Setting `pipelines`.",
        "NODE_IP": "Address at which browsers reach the machine's LiveKit server.",
        "GRAFANA_PASSWORD": "Of Grafana's user `admin`.",
        "RAY_METRICS_OUTPUT_ROOT": "Folder where Ray writes its configuration for Grafana; set by the image.",
    },
    "Set by the code, unless they are set already": {
        "TORCH_CPP_LOG_LEVEL": 'Benchmarks of several processes: "ERROR", so that tables are printed without warnings.',
        "RAY_AUTH_MODE": '`characters up`: "token", so that Ray asks for RAY_AUTH_TOKEN. Benchmarks: "disabled".',
        "RAY_USAGE_STATS_ENABLED": '"0": Ray reports nothing.',
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": '"0": Ray keeps every port on loopback.',
        "RAY_worker_niceness": '"0": by default Ray\'s workers give way to every other process.',
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": '"1": Serve starts a dead proxy again after 3 checks, not 30 s.',
        "RAY_task_events_max_num_task_in_gcs": '"1000": calls that Ray remembers, at 3 KB each; by default 100,000.',
        "RAY_SERVE_LOG_TO_STDERR": '"0": Serve logs to files only.',
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": '"0": Ray leaves CUDA_VISIBLE_DEVICES of processes without a GPU alone.',
        "CUDA_DEVICE_ORDER": '"PCI_BUS_ID": GPUs are counted as `nvidia-smi` counts them.',
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": '"0": we abort a broken communicator ourselves.',
        "TORCH_NCCL_ENABLE_MONITORING": '"0": PyTorch\'s watchdog does not end the process.',
    },
    "Set by the code, always": {
        "NCCL_NVLS_ENABLE": '"0": no NVLink multicast, see `deploy/cluster/README.md`.',
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": '"1": no NVLink multicast.',
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": '"1": each rank may see its own GPU as number 0.',
        "TMPDIR": "`characters up`: a folder for the temporary files of all that it starts, removed at the end.",
        "LIVEKIT_CONFIG": "Hands its configuration to a LiveKit server of the application's own.",
        "GOBIN": "Where Go puts the LiveKit server that it builds.",
    },
}


def page() -> str:
    """The whole page, Markdown."""
    lines = [
        "# Configuration",
        "",
        "Generated by `python -m deploy.cli.reference` from the schemas in the code; a test compares the two.",
        "",
        "Files are YAML. An unknown key, a wrong type or a value out of range is an error that names the file and the "
        'line. Below, `a.b` is the key `b` inside the key `a`, and "required" is a key without a default.',
        "",
    ]
    lines += [f"- [{section.title}](#{_anchor(section.title)})" for section in SECTIONS]
    lines += ["- [Environment variables](#environment-variables)"]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", section.intro]
        if section.folder:
            names = ", ".join(f"`{name}`" for name in conf_names(section.folder))
            lines += ["", f"Files that ship: {names}."]
        lines += _tables(section)
    lines += ["", "## Environment variables", ""]
    lines += ["Every variable that the code reads or sets. Variables that libraries read by themselves are theirs."]
    for title, variables in VARIABLES.items():
        lines += ["", f"### {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in variables.items()]
    return "\n".join(lines) + "\n"


def meanings(schema: type) -> dict[str, str]:
    """What the `Attributes:` of a dataclass's docstring says of each field, on one line."""
    _, _, text = (inspect.getdoc(schema) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            break  # the next part of the docstring
        if entry := re.fullmatch(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found


def _tables(section: Section) -> list[str]:
    """The section's table, and one for each schema that several of its keys have."""
    count = Counter(_nested(section.schema))
    shared = [schema for schema, times in count.items() if times > 1]
    links = {other.schema: other.title for other in SECTIONS if other.schema is not section.schema}
    links |= {schema: f"{section.title}: {schema.__name__}" for schema in shared}
    lines = _table(section.schema, links, section.skip)
    for schema in shared:
        lines += ["", f"### {links[schema]}", "", _first_line(schema), *_table(schema, links)]
    return lines


def _table(schema: type, links: Mapping[type, str], skip: tuple[str, ...] = ()) -> list[str]:
    rows = [f"| {' | '.join(row)} |" for row in _rows(schema, links, skip)]
    return ["", "| key | type | default | meaning |", "|---|---|---|---|", *rows]


def _nested(schema: type) -> Iterator[type]:
    for _, hint in _fields(schema):
        if (inner := _schema_of(hint)) is not None:
            yield inner
            yield from _nested(inner)


def _rows(
    schema: type, links: Mapping[type, str], skip: tuple[str, ...] = (), prefix: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    told = meanings(schema)
    for field, hint in _fields(schema):
        if field.name in skip:
            continue
        inner, key = _schema_of(hint), prefix + field.name
        linked = inner in links
        if field.name not in told and (inner is None or linked):
            raise ValueError(f"the docstring of {schema.__name__} does not say what {field.name} is")
        meaning = told.get(field.name, "")
        if inner is None or linked or meaning:
            yield f"`{key}`", _type(hint, links), _default(field, inner), _cell(meaning)
        if inner is not None and not linked:
            middle = ".NAME." if typing.get_origin(hint) is dict else "."
            yield from _rows(inner, links, prefix=key + middle)


def _fields(schema: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(schema)
    return [(field, hints[field.name]) for field in dataclasses.fields(schema)]


def _schema_of(hint: Any) -> type | None:
    """The dataclass that a key holds: itself, or null, or by name."""
    for candidate in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(candidate) and candidate is not AdmissionConfig:
            return typing.cast(type, candidate)
    return None


def _type(hint: Any, links: Mapping[type, str]) -> str:
    if hint is AdmissionConfig:
        return "text"
    if hint in links:
        return f"[{links[hint]}](#{_anchor(links[hint])})"
    plain = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "any"}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(str(member.value) for member in hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(a, links) for a in args if a is not types.NoneType) + " or null"
    if origin is list:
        return f"list of {_type(args[0], links)}"
    if origin is dict:
        return f"by name: {_type(args[1], links)}"
    return "keys"


def _default(field: dataclasses.Field[Any], inner: type | None) -> str:
    if field.type == "AdmissionConfig":
        return '`"default"`'
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if value is dataclasses.MISSING or value == MISSING:
        return "required"
    if inner is not None and value is not None and value != {}:
        return ""
    return f"`{json.dumps(value)}`"


def _first_line(schema: type) -> str:
    return (inspect.getdoc(schema) or "").partition("\n")[0]


def _anchor(title: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
