"""A window as it is first written, launch by launch: the baseline of `characters bench chunk`.

The arithmetic and the order of operations are those of the published models: a module an operation, norms and rotation
in float32, products in the networks' dtype, condition tokens projected in every pass, every frame of the Wan VAE
convolved with copies of the two before it. Nothing is captured, fused or quantised.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.chunk import FRAMES_PER_CHUNK
from characters.generate.networks import Networks
from characters.model.dit import EPS, Block, DiT, Head
from characters.model.rope import Rope3D
from characters.model.sampler import along
from characters.model.taehv import STRIDE, TinyVae
from characters.model.wan_vae.layers import Attention, CausalConv3d, Downsample, ResidualBlock, RmsNorm, Upsample
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import normalise
from kernels.attention import attend
from kernels.lab_match import lab_match_reference


class EagerWindow:
    """One session's windows; the parts are methods of their own, so that each can be timed.

    Args:
        networks: of a window model, not quantised.
        dtype: of the autoencoder, which the published code runs in the DiT's.
    """

    def __init__(self, networks: Networks, dtype: torch.dtype) -> None:
        config, dit = networks.config, networks.dit
        assert config.window is not None
        self._networks, self._window, self._dtype = networks, config.window, dtype
        autoencoder = copy.deepcopy(networks.autoencoder).to(dtype)
        assert isinstance(autoencoder, WanVae | TinyVae)
        self._tiny = autoencoder if isinstance(autoencoder, TinyVae) else None
        self._wan = EagerWanVae(autoencoder) if isinstance(autoencoder, WanVae) else None
        rope = Rope3D(dit.head_dim, config.grid, config.dit.rope_theta)
        tables = [rope.table(position, device=networks.device) for position in range(config.frames)]
        cos, sin = (torch.cat(parts) for parts in zip(*tables, strict=True))
        self._turns = torch.complex(cos, sin)[:, None]

    def window(
        self, sound: Tensor, noise: Tensor, history: Tensor | None, reference: Tensor, colours: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All of a window.

        Args:
            sound: float32 [1, n], at 16 kHz.
            noise: [draws, frames, c, h, w].
            history: [history, H, W, 3] in [0, 1], frames that were shown; None at first.
            reference: [frames, c, h, w], latents of the portrait held still.
            colours: of the portrait, see `lab_match`.

        Returns:
            All frames, float32 [pixels, H, W, 3] in [0, 1], and the fresh ones, uint8 RGB.
        """
        before = reference[:1] if history is None else self.encode(history)
        latents = self.denoise(self.hear(sound), noise, before, reference)
        frames = self.colour(self.decode(latents), colours)
        return frames, self.convert(frames)

    def encode(self, history: Tensor) -> Tensor:
        """Shown frames -> [history_latents, c, h, w]."""
        frames = history.permute(0, 3, 1, 2).to(self._dtype)
        if self._tiny is not None:
            missing = -len(frames) % STRIDE
            padded = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1)))
            return self._tiny.encoder(padded).to(self._networks.dtype)
        assert self._wan is not None
        return self._wan.encode(frames).to(self._networks.dtype)

    def hear(self, sound: Tensor) -> Tensor:
        """-> [frames, tokens, dim]."""
        networks, window = self._networks, self._window
        assert networks.ear is not None and networks.projection is not None
        states = networks.ear(normalise(sound).to(networks.dtype), round(window.heard * window.fps))
        return networks.projection(states[:, -window.pixels :])[0]

    def denoise(self, tokens: Tensor, noise: Tensor, history: Tensor, reference: Tensor) -> Tensor:
        """All passes of the DiT."""
        config, drawn = self._networks.config.sampler, list(noise.to(reference.dtype))
        x = reference if config.source == "reference" else drawn.pop(0)
        for i, (now, told) in enumerate(zip(config.steps, config.timesteps or config.steps, strict=True)):
            told = told / 1000 if config.timesteps else told
            x = torch.cat((history, x[len(history) :]))
            velocity = self._pass(torch.cat((x, reference), 1), told, tokens)
            clean, last = x - now * velocity, i + 1 == len(config.steps)
            then = config.end if last else config.steps[i + 1]
            if config.noise == "fresh" and not last:
                x = (1 - then) * clean + then * drawn.pop(0)
            else:
                x = along(x, clean, now, then)
        return torch.cat((history, x[len(history) :]))

    def decode(self, latents: Tensor) -> Tensor:
        """-> [pixels, 3, H, W], about [-1, 1]."""
        latents = latents.to(self._dtype)
        if self._tiny is not None:
            return self._tiny.decoder(latents)[STRIDE - 1 :] * 2 - 1
        assert self._wan is not None
        return self._wan.decode(latents)

    def colour(self, signal: Tensor, colours: Tensor) -> Tensor:
        """-> float32 [pixels, H, W, 3] in [0, 1]."""
        return lab_match_reference(signal.permute(0, 2, 3, 1), None, colours)

    def convert(self, frames: Tensor) -> Tensor:
        """The fresh ones as bytes."""
        return (frames[self._window.history :] * 255).round().to(torch.uint8)

    def _pass(self, inputs: Tensor, level: float, tokens: Tensor) -> Tensor:
        dit: DiT = self._networks.dit
        assert dit.patch_embedding is not None and dit.head is not None
        x = dit.patch_embedding(dit.patchify(inputs).flatten(0, 1))
        modulation = dit.modulate(torch.full((1,), level, device=x.device))
        for block, six in zip(dit.blocks.values(), modulation.blocks, strict=True):
            x = self._block(block, x, six.float(), tokens)
        head: Head = dit.head
        assert modulation.head is not None
        shift, scale = modulation.head.float()
        x = head.head((_layer_norm(x) * (1 + scale) + shift).to(x.dtype))
        return dit.unpatchify(x.unflatten(0, (len(inputs), -1)))

    def _block(self, block: Block, x: Tensor, six: Tensor, tokens: Tensor) -> Tensor:
        own, cross, dtype = block.self_attn, block.cross_attn, x.dtype
        shift1, scale1, gate1, shift2, scale2, gate2 = six
        h = (_layer_norm(x) * (1 + scale1) + shift1).to(dtype)
        q, k = (_rms_norm(layer(h), norm) for layer, norm in ((own.q, own.norm_q), (own.k, own.norm_k)))
        q, k, v = (y.unflatten(-1, (own.heads, -1)) for y in (q, k, own.v(h)))
        h = own.o(attend(self._turn(q), self._turn(k), v).flatten(1))
        x = (x.float() + h.float() * gate1).to(dtype)
        h = _layer_norm(x, block.norm3).to(dtype)
        q, k = _rms_norm(cross.q(h), cross.norm_q), _rms_norm(cross.k(tokens), cross.norm_k)
        q = q.unflatten(0, (len(tokens), -1))
        parts = (y.unflatten(-1, (cross.heads, -1)).transpose(1, 2) for y in (q, k, cross.v(tokens)))
        x = x + cross.o(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2).flatten(0, 1))
        h = (_layer_norm(x) * (1 + scale2) + shift2).to(dtype)
        return (x.float() + block.ffn(h).float() * gate2).to(dtype)

    def _turn(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self._turns).flatten(-2).to(x.dtype)


def _layer_norm(x: Tensor, norm: nn.LayerNorm | None = None) -> Tensor:
    """float32, whatever x is."""
    affine = (None, None) if norm is None else (norm.weight.float(), norm.bias.float())
    return F.layer_norm(x.float(), x.shape[-1:], *affine, EPS)


def _rms_norm(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * norm.weight


class EagerWanVae:
    """The Wan 2.1 VAE over pictures [1, c, t, h, w], with a list of the frames that each convolution has seen.

    Args:
        vae: whose weights it takes.
    """

    def __init__(self, vae: WanVae) -> None:
        assert vae.encoder.patch == 1 and not any(block.shortcut for block in vae.decoder.up_blocks)
        self._vae = vae
        self._seen: dict[nn.Module, Tensor] = {}

    def encode(self, frames: Tensor) -> Tensor:
        """[1 + 4 n, 3, H, W] in [0, 1] -> [1 + n, c, h, w]."""
        self._seen.clear()
        vae, x = self._vae, frames.movedim(0, 1)[None] * 2 - 1
        parts = [x[:, :, :1], *x[:, :, 1:].split(FRAMES_PER_CHUNK, 2)]
        found = torch.cat([self._encode(part) for part in parts], 2)
        mean, _ = F.conv3d(found, vae.quant_conv.weight, vae.quant_conv.bias).chunk(2, 1)
        return ((mean[0].movedim(1, 0) - vae.mean.view(-1, 1, 1)) / vae.std.view(-1, 1, 1)).contiguous()

    def decode(self, latents: Tensor) -> Tensor:
        """[1 + n, c, h, w] -> [1 + 4 n, 3, H, W], about [-1, 1]."""
        self._seen.clear()
        vae = self._vae
        z = (latents * vae.std.view(-1, 1, 1) + vae.mean.view(-1, 1, 1)).movedim(0, 1)[None]
        z = F.conv3d(z, vae.post_quant_conv.weight, vae.post_quant_conv.bias)
        return torch.cat([self._decode(z[:, :, i : i + 1]) for i in range(z.shape[2])], 2)[0].movedim(0, 1)

    def _encode(self, x: Tensor) -> Tensor:
        encoder = self._vae.encoder
        x = self._convolve(encoder.conv_in, x)
        for block in encoder.down_blocks:
            for resnet in block.resnets:
                x = self._residual(resnet, x)
            if block.downsampler is not None:
                x = self._down(block.downsampler, x)
        x = self._middle(encoder.mid_block, x)
        return self._convolve(encoder.conv_out, F.silu(self._norm(encoder.norm_out, x)))

    def _decode(self, z: Tensor) -> Tensor:
        decoder = self._vae.decoder
        x = self._middle(decoder.mid_block, self._convolve(decoder.conv_in, z))
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                x = self._residual(resnet, x)
            if block.upsampler is not None:
                x = self._up(block.upsampler, x)
        return self._convolve(decoder.conv_out, F.silu(self._norm(decoder.norm_out, x)))

    def _convolve(self, layer: CausalConv3d, x: Tensor) -> Tensor:
        seen, border = self._seen.get(layer), layer.kernel_size[1] // 2
        keep = x[:, :, -2:].clone()
        if seen is not None and keep.shape[2] < 2:
            keep = torch.cat((seen[:, :, -1:], keep), 2)
        x = x if seen is None else torch.cat((seen, x), 2)
        x = F.pad(x, (border,) * 4 + (2 if seen is None else 2 - seen.shape[2], 0))
        self._seen[layer] = keep
        return F.conv3d(x, layer.weight, layer.bias)

    @staticmethod
    def _norm(norm: RmsNorm, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * x.shape[1] ** 0.5 * norm.gamma

    def _residual(self, block: ResidualBlock, x: Tensor) -> Tensor:
        around = x if block.conv_shortcut is None else block.conv_shortcut(x)
        h = self._convolve(block.conv1, F.silu(self._norm(block.norm1, x)))
        return self._convolve(block.conv2, F.silu(self._norm(block.norm2, h))) + around

    def _middle(self, block: nn.Module, x: Tensor) -> Tensor:
        first, second = block.resnets
        return self._residual(second, self._attend(block.attentions[0], self._residual(first, x)))

    def _attend(self, layer: Attention, x: Tensor) -> Tensor:
        _, channels, frames, h, w = x.shape
        y = x[0].movedim(1, 0)
        q, k, v = layer.to_qkv(self._norm(layer.norm, y)).flatten(2).transpose(1, 2)[:, None].chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(frames, channels, h, w)
        return x + layer.proj(y).movedim(0, 1)[None]

    def _up(self, layer: Upsample, x: Tensor) -> Tensor:
        if layer.time_conv is not None:
            # The first frame is not doubled, and the doubling does not see it.
            if layer in self._seen:
                x = self._convolve(layer.time_conv, x)
                x = x.unflatten(1, (2, -1)).permute(0, 2, 3, 1, 4, 5).flatten(2, 3)
            self._seen[layer] = x[:, :, :0]
        y = x[0].movedim(1, 0)
        y = F.interpolate(y.float(), scale_factor=2, mode="nearest-exact").to(x.dtype)
        return F.conv2d(y, layer.conv.weight, layer.conv.bias, padding=1).movedim(0, 1)[None]

    def _down(self, layer: Downsample, x: Tensor) -> Tensor:
        y = F.pad(x[0].movedim(1, 0), (0, 1, 0, 1))
        x = F.conv2d(y, layer.conv.weight, layer.conv.bias, stride=2).movedim(0, 1)[None]
        time = layer.time_conv
        if time is None:
            return x
        seen, self._seen[layer] = self._seen.get(layer), x[:, :, -1:].clone()
        return x if seen is None else F.conv3d(torch.cat((seen, x), 2), time.weight, time.bias, stride=(2, 1, 1))
