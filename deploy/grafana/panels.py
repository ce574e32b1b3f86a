"""What the dashboard shows: panels, and the Prometheus queries behind them.

Metrics come from `actors.pipeline.stage` and `deploy.serving.session_metrics`; Ray puts `ray_` before their names and
`_total` after a counter's. The node metrics are Ray's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DEADLINE = 1.0  # of the time that a chunk lasts; an edge of the histogram's buckets, so that shares are exact

# Chunks come several a second, or one: a scrape or two will do. Turns are minutes apart.
_CHUNKS, _TURNS = "$__rate_interval", "5m"
_STAGE = "stage, plan, model"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and what its series are called; {{label}} stands for a label's value."""

    promql: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        title: over it.
        about: shown when pointed at.
        queries: what it draws.
        unit: as Grafana spells it.
        kind: Grafana's panel type.
        line: where a red line is drawn, in `unit`; None for none.
        nothing: what it says while its counter has never counted.
        needs_gpu: whether Ray exports what it shows only where there is a GPU.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Literal["timeseries", "heatmap"] = "timeseries"
    line: float | None = None
    nothing: str = ""
    needs_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _quantile(level: float, metric: str, by: str, window: str, where: str = "") -> str:
    labels = f"{{{where}}}" if where else ""
    inner = f"sum by (le, {by}) (rate(ray_{metric}_bucket{labels}[{window}]))"
    return f"histogram_quantile({level}, {inner})"


SESSIONS = Row(
    "Sessions and queue",
    (
        Panel(
            "Sessions",
            "Sessions in a room, sessions whose room waits for its user, users who wait, and the pipelines there are.",
            (
                Query('sum(ray_characters_sessions{state="RUNNING"})', "running"),
                Query('sum(ray_characters_sessions{state="READY"})', "ready"),
                Query('sum(ray_characters_sessions{state="NOT_READY"})', "queued"),
                Query("sum(ray_characters_pipelines)", "pipelines"),
            ),
        ),
        Panel(
            "Longest wait",
            "How long the first in the queue has waited; 0 if nobody waits.",
            (Query("max(ray_characters_longest_wait_seconds)", "longest wait"),),
            unit="s",
        ),
        Panel(
            "Refused, a minute",
            "Sessions not let in, by the API's code, such as queue_full or room_taken.",
            (
                Query(
                    f"60 * sum by (reason) (rate(ray_characters_refused_sessions_total[{_TURNS}]))",
                    "{{reason}}",
                ),
            ),
            nothing="nobody was refused",
        ),
        Panel(
            "How sessions ended",
            "Sessions of the last ten minutes that are over.",
            (
                Query(
                    'sum by (state) (ray_characters_sessions{state=~"COMPLETED|CANCELLED|FAILED"})',
                    "{{state}}",
                ),
            ),
        ),
    ),
)

CHUNKS = Row(
    "Chunks: frames made at a time, each chunk due when the one before it is over",
    (
        Panel(
            "Work on a chunk, by stage",
            "By the time that a chunk lasts (small: 167 ms, leaptalk: 1.12 s); median and 99th percentile. "
            "Stages work side by side; none may stay above the line.",
            (
                Query(_quantile(0.5, "characters_stage_share", _STAGE, _CHUNKS), "{{stage}} {{plan}} {{model}} p50"),
                Query(_quantile(0.99, "characters_stage_share", _STAGE, _CHUNKS), "{{stage}} {{plan}} {{model}} p99"),
            ),
            unit="percentunit",
            line=DEADLINE,
        ),
        Panel(
            "Work on a chunk, all stages",
            "Where the stages' times lie, in seconds.",
            (Query(f"sum by (le) (increase(ray_characters_stage_seconds_bucket[{_CHUNKS}]))", "{{le}}"),),
            unit="s",
            kind="heatmap",
        ),
        Panel(
            "Share of a stage's chunks within the deadline",
            "1 = every chunk took that stage less time than a chunk lasts.",
            (
                Query(
                    f'sum by ({_STAGE}) (rate(ray_characters_stage_share_bucket{{le="{DEADLINE}"}}[{_CHUNKS}]))'
                    f" / sum by ({_STAGE}) (rate(ray_characters_stage_share_count[{_CHUNKS}]))",
                    "{{stage}} {{plan}} {{model}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Late chunks, a minute",
            "Chunks that missed their deadline: picture and sound stood still together. By plan.",
            (
                Query(
                    f"60 * sum by (plan, model) (rate(ray_characters_late_chunks_total[{_CHUNKS}]))",
                    "{{plan}} {{model}}",
                ),
            ),
            nothing="no chunk was late",
        ),
        Panel(
            "Chunks a second",
            "Of a session that keeps up: 6 of the small model, 0.89 of LeapTalk.",
            (
                Query(
                    f"sum by (plan, model) (rate(ray_characters_chunk_latency_seconds_count[{_CHUNKS}]))",
                    "{{plan}} {{model}}",
                ),
            ),
        ),
        Panel(
            "A chunk's way",
            "From the aligner to the publisher, and from there to the eye as browsers report it.",
            (
                Query(_quantile(0.5, "characters_chunk_latency_seconds", "plan", _CHUNKS), "to the publisher p50"),
                Query(_quantile(0.99, "characters_chunk_latency_seconds", "plan", _CHUNKS), "to the publisher p99"),
                Query(_quantile(0.5, "characters_publish_to_render_seconds", "plan", _CHUNKS), "to the eye p50"),
                Query(_quantile(0.99, "characters_publish_to_render_seconds", "plan", _CHUNKS), "to the eye p99"),
            ),
            unit="s",
        ),
    ),
)

TURNS = Row(
    "Turns: from the user's last word to the character's first",
    (
        Panel(
            "A turn, whole",
            "Up to the last thing known of it, five minutes at a time.",
            (
                Query(_quantile(0.5, "characters_turn_seconds", "plan", _TURNS, 'stage="turn"'), "{{plan}} p50"),
                Query(_quantile(0.95, "characters_turn_seconds", "plan", _TURNS, 'stage="turn"'), "{{plan}} p95"),
            ),
            unit="s",
        ),
        Panel(
            "Its steps",
            "Median of each step: from the step named before it until what it is named for happened.",
            (Query(_quantile(0.5, "characters_turn_seconds", "stage", _TURNS, 'stage!="turn"'), "{{stage}}"),),
            unit="s",
        ),
    ),
)

MACHINES = Row(
    "Machines",
    (
        Panel(
            "GPU in use",
            "As the driver tells Ray: the share of time in which anything ran.",
            (
                Query(
                    "ray_node_gpus_utilization / 100",
                    "{{instance}} GPU {{GpuIndex}}",
                ),
            ),
            unit="percentunit",
            needs_gpu=True,
        ),
        Panel(
            "GPU memory",
            "Used, of all processes.",
            (Query("ray_node_gram_used", "{{instance}} GPU {{GpuIndex}}"),),
            unit="decmbytes",
            needs_gpu=True,
        ),
        Panel(
            "Processor",
            "Of each machine.",
            (Query("ray_node_cpu_utilization / 100", "{{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "Memory",
            "Used, of each machine.",
            (Query("ray_node_mem_used", "{{instance}}"),),
            unit="bytes",
        ),
    ),
)

ROWS = (SESSIONS, CHUNKS, TURNS, MACHINES)
