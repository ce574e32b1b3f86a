"""`characters evaluate`: how good a model is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from characters.errors import UserError


@click.command()
@click.option("--model", default="small", show_default=True, help="A model of conf/model.")
@click.option("--weights", type=click.Path(path_type=Path), help="Folder of weights; default: the model's own.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--identities", type=int, help="Characters in the drift run.  [default: 64]")
@click.option("--minutes", type=float, help="Length of the drift run.  [default: 10]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 1_000_000), help="Of everything random.")
@click.option("--steps", help="Noise levels of the sampler, such as 1,0.5; default: the model's own.")
@click.option(
    "--commit", type=click.Choice(["reuse", "clean"]), help="Which pass writes K/V; default: the model's own."
)
@click.option("--context-noise", type=float, help="Share of noise in the previous latent; default: the model's own.")
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp32", "fp8", "fp8-dynamic"]),
    help="fp8: the DiT's products and cache, scales calibrated or by row.  [default: what the device is fast at]",
)
@click.option(
    "--photographs",
    type=click.Path(path_type=Path),
    help="Folder of pictures of faces: measure these alone, with MediaPipe's landmarks.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("evaluation"), show_default=True, help="Folder.")
@click.option("--quick", is_flag=True, help="Measure a few characters briefly: minutes on a CPU, rough figures.")
def evaluate(
    model: str,
    weights: Path | None,
    device: str,
    identities: int | None,
    minutes: float | None,
    seed: int,
    steps: str | None,
    commit: str | None,
    context_noise: float | None,
    precision: str | None,
    photographs: Path | None,
    out: Path,
    quick: bool,
) -> None:
    """Measure picture, lip-sync, silence, drift and speed of a model, on characters and speech that it never saw.

    With --photographs: how well faces of real pictures speak, and keep still in silence.

    Prints a table with the goal beside each figure and writes evaluation.json, plots and contact sheets.
    """
    import torch

    from characters.device import choose_device, fast_dtype
    from characters.evaluation.bench import QUICK, Amount, Bench
    from characters.evaluation.evaluate import evaluate as run
    from characters.evaluation.heldout import load_heldout
    from characters.evaluation.photographs import PHOTOGRAPH_CHUNKS
    from characters.evaluation.photographs import evaluate as run_photographs
    from characters.evaluation.pictures import require_matplotlib
    from characters.evaluation.precision import to_fp8
    from characters.evaluation.report import print_table
    from characters.model.config import check, load_model_config

    require_matplotlib()  # say so before the model is loaded
    amount = QUICK if quick else Amount()
    amount = dataclasses.replace(
        amount, **{k: v for k, v in {"identities": identities, "minutes": minutes}.items() if v is not None}
    )
    config = load_model_config(model)
    changed = {"steps": parse_steps(steps), "commit": commit, "context_noise": context_noise}
    sampler = dataclasses.replace(config.sampler, **{k: v for k, v in changed.items() if v is not None})
    check(dataclasses.replace(config, sampler=sampler), "the sampler's options")
    chosen = choose_device(device)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}.get(precision or "", fast_dtype(chosen))
    bench = Bench.load(model, weights, sampler, chosen, dtype, seed)
    if precision in ("fp8", "fp8-dynamic"):
        to_fp8(bench, "static" if precision == "fp8" else "dynamic", load_heldout())
    settings = {"model": model, "weights": str(weights or ""), "seed": seed, "quick": quick, "precision": precision}
    try:
        if photographs is not None:
            figures = run_photographs(bench, photographs, out, settings, amount.clip_chunks or PHOTOGRAPH_CHUNKS)
        else:
            figures = run(bench, amount, out, settings)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from error
    print_table(figures, f"model {model}, steps {', '.join(f'{s:g}' for s in sampler.steps)}, {sampler.commit}")
    click.echo(str(out / "evaluation.json"))


def parse_steps(text: str | None) -> list[float] | None:
    """ "1,0.5" -> [1.0, 0.5]. Raises UserError for anything but numbers."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--steps is {text!r}; it must be numbers such as 1,0.5") from None
