"""The torch operators: what torch.compile and CUDA graphs see. Needs torch >= 2.6.

Their results are tensors of their own, since a compiler may keep a result for as long as it likes; one copy
from the lent memory is the price. Groups and kernels go by name, because an operator takes no objects.
"""

from __future__ import annotations

import torch

from xstage import block_sparse, functional, moe
from xstage import group as _group
from xstage._errors import BadInput

_library = torch.library.Library("xstage", "DEF")

_library.define(
    "ulysses_attention(Tensor q, Tensor k, Tensor v, Tensor? joint_q, Tensor? joint_k, Tensor? joint_v, "
    "Tensor? kv_lengths, *, str group, float scale=0.0, bool joint_front=False, int[]? seq_lens=None, "
    "int[]? kv_seq_lens=None, bool return_lse=False, str attention='') -> Tensor[]"
)
_library.define(
    "attend_and_scatter(Tensor q, Tensor k, Tensor v, Tensor? kv_lengths, *, str group, int heads, int kv_heads, "
    "int[] seq_lens, int[]? kv_seq_lens=None, float scale=0.0, bool return_lse=False, str attention='') -> Tensor[]"
)
_library.define(
    "mega_moe(Tensor x, Tensor experts, Tensor weights, Tensor? x_scale, Tensor? tokens_at, *, str layer) -> Tensor"
)
_library.define(
    "block_sparse_attention(Tensor q, Tensor k, Tensor v, Tensor mask, *, float scale=0.0, bool return_lse=False) "
    "-> Tensor[]"
)


def _owned(found, out) -> list[torch.Tensor]:
    """The result in `out`, where it was copied to, and copies of what came beside it."""
    parts = list(found) if isinstance(found, tuple) else [found]
    return [out, *(x.clone(memory_format=torch.contiguous_format) for x in parts[1:])]


def _ulysses(q, k, v, joint_q, joint_k, joint_v, kv_lengths, *, group, scale=0.0, joint_front=False, seq_lens=None,
             kv_seq_lens=None, return_lse=False, attention=""):  # fmt: skip
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with torch.no_grad():
        found = functional.ulysses_attention(
            q, k, v, group=group, scale=scale or None, kv_lengths=kv_lengths, joint_q=joint_q, joint_k=joint_k,
            joint_v=joint_v, joint_strategy="front" if joint_front else "rear", seq_lens=seq_lens,
            kv_seq_lens=kv_seq_lens, out=out, return_lse=return_lse, attention=attention or None,
        )  # fmt: skip
    return _owned(found, out)


def _ulysses_fake(q, k, v, joint_q, joint_k, joint_v, kv_lengths, *, group, scale=0.0, joint_front=False,
                  seq_lens=None, kv_seq_lens=None, return_lse=False, attention=""):  # fmt: skip
    batch, rows, heads, _ = q.shape
    found = [torch.empty(q.shape, dtype=q.dtype, device=q.device)]
    if joint_q is not None:
        found.append(torch.empty(joint_q.shape, dtype=q.dtype, device=q.device))
    if return_lse:
        found.append(torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device))
        if joint_q is not None:
            shape = (batch, heads, joint_q.shape[1])
            found.append(torch.empty(shape, dtype=torch.float32, device=q.device))
    return found


def _gathered(q, k, v, kv_lengths, *, group, heads, kv_heads, seq_lens, kv_seq_lens=None, scale=0.0,
              return_lse=False, attention=""):  # fmt: skip
    rank = _group.resolve(group).rank
    out = torch.empty((q.shape[0], seq_lens[rank], heads, q.shape[3]), dtype=q.dtype, device=q.device)
    with torch.no_grad():
        found = functional.attend_and_scatter(
            q, k, v, group=group, heads=heads, kv_heads=kv_heads, seq_lens=seq_lens, kv_seq_lens=kv_seq_lens,
            scale=scale or None, kv_lengths=kv_lengths, out=out, return_lse=return_lse, attention=attention or None,
        )  # fmt: skip
    return _owned(found, out)


def _gathered_fake(q, k, v, kv_lengths, *, group, heads, kv_heads, seq_lens, kv_seq_lens=None, scale=0.0,
                   return_lse=False, attention=""):  # fmt: skip
    rows = seq_lens[_group.resolve(group).rank]
    found = [torch.empty((q.shape[0], rows, heads, q.shape[3]), dtype=q.dtype, device=q.device)]
    if return_lse:
        found.append(torch.empty((q.shape[0], heads, rows), dtype=torch.float32, device=q.device))
    return found


def _moe(x, experts, weights, x_scale, tokens_at, *, layer):
    if layer not in moe._layers:
        raise BadInput(f"there is no MegaMoe layer {layer!r}: it was closed, or never built in this process")
    with torch.no_grad():
        return moe._layers[layer](x, experts, weights, x_scale=x_scale, tokens_at=tokens_at)


def _moe_fake(x, experts, weights, x_scale, tokens_at, *, layer):
    return torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)


def traced_moe(x, experts, weights, x_scale, tokens_at, layer):
    if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
        raise BadInput("forward only: an input requires grad; call under torch.no_grad(), or detach it")
    return torch.ops.xstage.mega_moe(x, experts, weights, x_scale, tokens_at, layer=layer)


def _sparse(q, k, v, mask, *, scale=0.0, return_lse=False):
    with torch.no_grad():
        found = block_sparse.block_sparse_attention(q, k, v, mask, scale=scale or None, return_lse=return_lse)
    return list(found) if return_lse else [found]


def _sparse_fake(q, k, v, mask, *, scale=0.0, return_lse=False):
    found = [torch.empty(q.shape, dtype=q.dtype, device=q.device)]
    if return_lse:
        shape = (q.shape[0], q.shape[2], q.shape[1])
        found.append(torch.empty(shape, dtype=torch.float32, device=q.device))
    return found


def traced_sparse(q, k, v, mask, scale, out, return_lse):
    """block_sparse_attention as a compiler may trace it; the mask by its words, which stay on the host."""
    if not isinstance(mask, torch.Tensor):
        raise BadInput("compiled code passes a mask by its words: mask.torch(), made outside of it")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise BadInput("forward only: an input requires grad; call under torch.no_grad(), or detach it")
    found = torch.ops.xstage.block_sparse_attention(q, k, v, mask, scale=scale or 0.0, return_lse=return_lse)
    if out is not None:
        out.copy_(found[0])
        found[0] = out
    return tuple(found) if return_lse else found[0]


for _key in ("CPU", "CUDA"):
    _library.impl("block_sparse_attention", _sparse, _key)
    _library.impl("mega_moe", _moe, _key)
    _library.impl("ulysses_attention", _ulysses, _key)
    _library.impl("attend_and_scatter", _gathered, _key)
torch.library.register_fake("xstage::ulysses_attention", _ulysses_fake, lib=_library)
torch.library.register_fake("xstage::block_sparse_attention", _sparse_fake, lib=_library)
torch.library.register_fake("xstage::mega_moe", _moe_fake, lib=_library)
torch.library.register_fake("xstage::attend_and_scatter", _gathered_fake, lib=_library)


def traced(q, k, v, joint_q, joint_k, joint_v, kv_lengths, out, *, group, scale, joint_strategy, seq_lens,
           kv_seq_lens, return_lse, attention):  # fmt: skip
    """ulysses_attention as a compiler may trace it: the operator, its checks, and the shape of its result."""
    if attention is torch.nn.functional.scaled_dot_product_attention:
        attention = None
    if attention is not None and not isinstance(attention, str):
        raise BadInput("compiled code passes attention by name: xstage.register_attention(name, kernel)")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise BadInput("forward only: an input requires grad; call under torch.no_grad(), or detach it")
    found = torch.ops.xstage.ulysses_attention(
        q, k, v, joint_q, joint_k, joint_v, kv_lengths, group=_group.name_of(group), scale=scale or 0.0,
        joint_front=joint_strategy == "front", seq_lens=seq_lens, kv_seq_lens=kv_seq_lens, return_lse=return_lse,
        attention=attention or "",
    )  # fmt: skip
    if out is not None:
        out.copy_(found[0])
        found[0] = out
    return found[0] if len(found) == 1 else tuple(found)
