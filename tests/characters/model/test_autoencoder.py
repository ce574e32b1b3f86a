import torch

from characters.model.autoencoder import Autoencoder, StreamingDecoder
from tests.characters.model.test_context import tiny_config


def make() -> Autoencoder:
    torch.manual_seed(0)
    autoencoder = Autoencoder(tiny_config()).double().eval()
    for p in autoencoder.parameters():
        torch.nn.init.normal_(p, std=0.05)
    return autoencoder


@torch.inference_mode()
def test_streaming_decode_equals_whole_clip_decode():
    autoencoder = make()
    latents = torch.randn(2, 5, 4, 4, 3, dtype=torch.float64)
    portrait = torch.randn(2, 4, 4, 3, dtype=torch.float64)
    whole = autoencoder.decode_clip(latents, portrait)
    previous, parts = portrait, []
    for i in range(5):
        parts.append(autoencoder.decode(latents[:, i], previous))
        previous = latents[:, i]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=1e-12)

    stream = StreamingDecoder(autoencoder, portrait)
    pixels = torch.cat([stream.decode(latents[:, i]) for i in range(5)], 1)
    expected = (whole.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2)
    assert pixels.shape == (2, 20, 64, 48, 3)
    assert torch.equal(pixels, expected)


@torch.inference_mode()
def test_the_decoder_is_causal_and_forgets_after_one_chunk():
    autoencoder = make()
    latents = torch.randn(1, 4, 4, 4, 3, dtype=torch.float64)
    portrait = torch.randn(1, 4, 4, 3, dtype=torch.float64)
    before = autoencoder.decode_clip(latents, portrait)
    latents[:, 2] += 1
    changed = (autoencoder.decode_clip(latents, portrait) != before).flatten(2).any(-1)[0]
    assert changed.tolist() == [False] * 8 + [True] * 8


@torch.inference_mode()
def test_a_still_encodes_like_a_clip_of_itself():
    autoencoder = make()
    image = torch.rand(1, 3, 64, 48, dtype=torch.float64)
    assert torch.equal(autoencoder.encode_image(image), autoencoder.encode(image[:, None].repeat(1, 4, 1, 1, 1)))
