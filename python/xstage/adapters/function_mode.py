"""Ulysses for code that calls F.scaled_dot_product_attention and knows nothing of ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from xstage import functional
from xstage._errors import BadInput


class UlyssesMode(TorchFunctionMode):
    """Inside this context F.scaled_dot_product_attention is attention over the group's ranks.

        with UlyssesMode(group): model(shard)

    Each rank passes its own rows, [B, H, S_local, D]; positions (rotary tables) are the model's business.
    Calls whose keys are not sharded (cross attention to a prompt) are recognised by `is_sharded`, a function
    of (query, key); the default takes those with as many key rows as query rows. seq_lens: rows of every
    rank where they differ. Masks, dropout and is_causal raise BadInput.
    """

    def __init__(self, group=None, *, attention=None, seq_lens=None, is_sharded=None):
        super().__init__()
        self.group, self.attention, self.seq_lens = group, attention, seq_lens
        self.is_sharded = is_sharded or (lambda query, key: query.shape[-2] == key.shape[-2])

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not F.scaled_dot_product_attention:
            return function(*args, **kwargs)
        return self._attend(*args, **kwargs)

    def _attend(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if not self.is_sharded(query, key):
            with torch._C.DisableTorchFunction():
                return F.scaled_dot_product_attention(
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
        if attn_mask is not None or dropout_p or is_causal:
            raise BadInput("attention over ranks takes no mask, no dropout and no causality; see is_sharded")
        with torch._C.DisableTorchFunction():
            out = functional.ulysses_attention(
                *(x.transpose(1, 2) for x in (query, key, value)), group=self.group, scale=scale,
                seq_lens=self.seq_lens, attention=self.attention,
            )  # fmt: skip
            return out.transpose(1, 2)
