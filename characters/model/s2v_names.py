"""What published checkpoints of Wan2.2-S2V call our tensors."""

from __future__ import annotations

import re

_PREFIXES = {
    "kinds": "trainable_cond_mask.weight",
    "no_pose": "cond_encoder.bias",
    "packs.": "frame_packer.",
    "speech.weights": "casual_audio_encoder.weights",
    "speech.padding_tokens": "casual_audio_encoder.encoder.padding_tokens",
    "speech.final_linear.": "casual_audio_encoder.encoder.final_linear.",
}


def original_s2v_name(name: str, injected: list[int]) -> str:
    """Of one of the DiT's tensors, or of `SpeechTokens`' with "speech." before it; other names stay.

    Args:
        name: ours.
        injected: the blocks of the injectors, which checkpoints number in this order.
    """
    if match := re.fullmatch(r"injectors\.(\d+)\.(attention|adain)\.(.+)", name):
        number, kind = injected.index(int(match[1])), match[2]
        part = "injector" if kind == "attention" else "injector_adain_layers"
        return f"audio_injector.{part}.{number}.{'' if kind == 'attention' else 'linear.'}{match[3]}"
    if match := re.fullmatch(r"speech\.(conv\w+)\.(\w+)", name):
        return f"casual_audio_encoder.encoder.{match[1]}.conv.{match[2]}"
    for ours, theirs in _PREFIXES.items():
        if name == ours or (ours.endswith(".") and name.startswith(ours)):
            return theirs + name[len(ours) :]
    return name
