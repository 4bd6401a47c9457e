"""Attention processors whose norm and rotation run in the first all-to-all. Tried with diffusers 0.42.1.

`xstage.adapters.diffusers.enable(model, config, fused=True)` installs them where they fit: the self-attention of
Wan (a norm over the full width, its own pairing of the table) and the blocks of Flux without a text stream of
their own (a norm per head). What they read is what the projection's GEMM left; nothing is written between.
"""

from __future__ import annotations

import torch

from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from diffusers.models.transformers.transformer_flux import _get_qkv_projections as flux_projections
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from diffusers.models.transformers.transformer_wan import _get_qkv_projections as wan_projections

from xstage import functional
from xstage.adapters import diffusers as adapter
from xstage.transforms import Norm, Rotary


def _norm(module: torch.nn.RMSNorm, kind: str) -> Norm:
    eps = module.eps if module.eps is not None else torch.finfo(module.weight.dtype).eps
    return Norm(module.weight.detach(), eps, kind=kind)


def _attend(processor, attn, query, key, value, rotary, kind):
    context = processor._parallel_config.context_parallel_config
    group = context._ulysses_mesh.get_group()
    rows, _ = adapter._lengths(group, query.shape[1], key.shape[1], context.ulysses_anything)
    given = {"q": (_norm(attn.norm_q, kind), rotary), "k": (_norm(attn.norm_k, kind), rotary)}
    out = functional.ulysses_attention(
        query, key, value, group=group, seq_lens=rows, attention=adapter._attention, transforms=given
    )
    return out.flatten(2)


class FusedWanProcessor(WanAttnProcessor):
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        if self._parallel_config is None or encoder_hidden_states is not None or rotary_emb is None:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb)
        parts = (x.unflatten(2, (attn.heads, -1)) for x in wan_projections(attn, hidden_states, None))
        rotary = Rotary(*rotary_emb, table="even_odd")
        out = _attend(self, attn, *parts, rotary, "full")
        return attn.to_out[1](attn.to_out[0](out))


class FusedFluxProcessor(FluxAttnProcessor):
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        if self._parallel_config is None or encoder_hidden_states is not None or image_rotary_emb is None:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        query, key, value, *_ = flux_projections(attn, hidden_states)
        parts = (x.unflatten(-1, (-1, attn.head_dim)) for x in (query, key, value))
        return _attend(self, attn, *parts, Rotary(*image_rotary_emb), "head")


_FUSED = {WanAttnProcessor: FusedWanProcessor, FluxAttnProcessor: FusedFluxProcessor}


def install(model) -> int:
    """Puts the fused processors in place of those that they can stand for; returns how many."""
    count = 0
    for module in model.modules():
        processor = getattr(module, "processor", None)
        kind = _FUSED.get(type(processor))
        norm = getattr(module, "norm_q", None)
        if kind is None or not isinstance(norm, torch.nn.RMSNorm) or getattr(module, "added_kv_proj_dim", None):
            continue
        fused = kind()
        fused._attention_backend, fused._parallel_config = processor._attention_backend, processor._parallel_config
        module.set_processor(fused)
        count += 1
    return count
