"""xstage in the place of xDiT's USP. Tried with xfuser 0.7.0.

    from xstage.adapters import xdit
    xdit.install()                      # after xfuser's models are imported, before the first step

Plain Ulysses calls go to xstage, joint text and grouped keys included. Calls that it does not serve go where they
went before: one rank, ring attention, masks and other attention_kwargs, causality, dropout, fp8 communication.
"""

from __future__ import annotations

import functools
import sys

from xfuser.model_executor.layers import usp as original

from xstage import functional

_installed = None


def install(attention=None) -> int:
    """Replaces USP in every xfuser module that has it; returns how many. `attention` as in xstage.Ulysses."""
    global _installed
    before = _installed or original.USP

    @functools.wraps(before)
    def usp(query, key, value, dropout_p=0.0, is_causal=False, joint_query=None, joint_key=None, joint_value=None,
            joint_strategy=None, attn_layer=None, combine_qkv_a2a=None, backend=None, attention_kwargs=None,
            head_balance_layer=None, kv_head_repeat=1):  # fmt: skip
        if _serves(query, dropout_p, is_causal, attn_layer, attention_kwargs):
            return _attend(query, key, value, joint_query, joint_key, joint_value, joint_strategy, attention)
        return before(
            query, key, value, dropout_p, is_causal, joint_query, joint_key, joint_value, joint_strategy, attn_layer,
            combine_qkv_a2a, backend, attention_kwargs, head_balance_layer, kv_head_repeat,
        )  # fmt: skip

    found = [m for name, m in list(sys.modules.items()) if name.startswith("xfuser") and hasattr(m, "USP")]
    for module in found:
        module.USP = usp
    _installed = before
    return len(found)


def _serves(query, dropout_p, is_causal, attn_layer, attention_kwargs) -> bool:
    if original.get_ulysses_parallel_world_size() == 1 or original.get_ring_parallel_world_size() > 1:
        return False
    if dropout_p or is_causal or attention_kwargs or query.element_size() == 1:
        return False
    if getattr(original.get_runtime_state(), "fp8_comms", None) is not None:
        return False
    return not original._has_kv_cache(attn_layer)


def _attend(query, key, value, joint_query, joint_key, joint_value, joint_strategy, attention):
    # xDiT keeps [B, H, S, D]. Its joint queries are rows of this rank; its joint keys are held by all.
    if joint_strategy:
        query = original._concat_joint_tensor(query, joint_query, joint_strategy, dim=2)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if joint_strategy:
        joint_key, joint_value = joint_key.transpose(1, 2), joint_value.transpose(1, 2)
    out = functional.ulysses_attention(
        query, key, value, group=original.PROCESS_GROUP.ULYSSES_PG, joint_k=joint_key, joint_v=joint_value,
        joint_strategy=joint_strategy or "rear", attention=attention,
    )  # fmt: skip
    return out.transpose(1, 2)
