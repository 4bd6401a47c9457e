"""xstage as an attention backend of diffusers' context parallelism. Tried with diffusers 0.42.1.

    from xstage.adapters import diffusers as xstage_diffusers
    xstage_diffusers.enable(transformer, ContextParallelConfig(ulysses_degree=2))

It serves every model whose processors call dispatch_attention_fn: those with a plan of their own (Wan, Flux,
Flux.2, Qwen-Image, LTX-2, MiniMax-H3), and HunyuanVideo and HunyuanVideo-1.5, whose plans are here: their text
is held by all ranks, so that its mask stays a length per sample. With `ulysses_anything` the lengths of the
ranks may differ; they are exchanged in every call then, since only the ranks know them.
"""

from __future__ import annotations

import contextlib
import math

import torch
import torch.distributed as dist
from diffusers.hooks import context_parallel
from diffusers.models import attention_dispatch
from diffusers.models._modeling_parallel import (
    ContextParallelInput,
    ContextParallelOutput,
    ParallelConfig,
)

from xstage import functional
from xstage import group as xstage_group
from xstage._errors import BadInput

NAME = "xstage"
_attention = None


class JointConfig(ParallelConfig):
    """A parallel configuration that also says how many of the last rows are text which all ranks hold."""

    def __init__(self, base: ParallelConfig, text: int):
        self.__dict__.update(base.__dict__)
        self.text = text


def register(attention=None) -> str:
    """Makes the backend "xstage" known to diffusers; `attention` as in xstage.Ulysses. Returns the name."""
    global _attention
    _attention = attention
    return add_backend(NAME, _backend)


def add_backend(name: str, function) -> str:
    """Makes a backend known to diffusers under a name of its own. Returns the name."""
    names = attention_dispatch.AttentionBackendName
    if name not in names._value2member_map_:
        # The enumeration is closed, and the registry takes nothing else.
        member = str.__new__(names, name)
        member._name_, member._value_ = name.upper(), name
        names._member_map_[member._name_] = names._value2member_map_[name] = member
        names._member_names_.append(member._name_)
    member = names._value2member_map_[name]
    registry = attention_dispatch._AttentionBackendRegistry
    if member not in registry._backends:
        registry.register(member, supports_context_parallel=True)(function)
    return name


def enable(model, config, attention=None, *, fused: bool = False) -> None:
    """model.enable_parallelism(config) with xstage as the backend; brings the plans that diffusers lacks.

    fused: norm and rotation run in the first all-to-all where a processor allows it (diffusers_fused); the norm's
    sum is then taken in another order than torch's, which can move a value by its last bit.
    """
    register(attention)
    model.set_attention_backend(NAME)
    kind = type(model).__name__
    plan = PLANS.get(kind)
    if kind == "LTX2VideoTransformer3DModel":
        # Its plan splits the video's rotation, and forgets the one between video and audio.
        plan = {**model._cp_plan, "cross_attn_rope": model._cp_plan["rope"]}
    if not hasattr(context_parallel.logger, "warning_once"):
        # diffusers 0.42.1 calls it where a plan's entry does not fit an input, and it does not exist.
        context_parallel.logger.warning_once = context_parallel.logger.debug
    with _counting_devices():
        model.enable_parallelism(config=config, cp_plan=plan)
    if config.ulysses_anything and "gloo" in dist.get_backend(config._flattened_mesh.get_group()):
        context_parallel._all_gather_anything = _gather_uneven
    if kind in PLANS:
        _joint_processors(model)
    if fused:
        from xstage.adapters import diffusers_fused

        diffusers_fused.install(model)


@contextlib.contextmanager
def _counting_devices():
    """diffusers divides by the number of accelerators; on a machine without one that is 0."""
    count = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: max(1, count())
    try:
        yield
    finally:
        torch.accelerator.device_count = count


def _gather_uneven(tensor, dim, group):
    """Of diffusers' form; its own needs a backend that gathers unequal parts, which gloo does not."""
    rows, _ = _lengths(group, tensor.shape[dim], 0, True)
    padded = tensor.new_zeros((*tensor.shape[:dim], max(rows), *tensor.shape[dim + 1 :]))
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part.narrow(dim, 0, n) for part, n in zip(parts, rows)], dim)


# Image rows are split where the blocks begin; the text that goes beside them is not.
_IMAGE_ALONE = {
    "transformer_blocks.0": {"hidden_states": ContextParallelInput(split_dim=1, expected_dims=3)},
    "rope": {
        0: ContextParallelInput(split_dim=0, expected_dims=2, split_output=True),
        1: ContextParallelInput(split_dim=0, expected_dims=2, split_output=True),
    },
    "proj_out": ContextParallelOutput(gather_dim=1, expected_dims=3),
}
PLANS = {
    "HunyuanVideoTransformer3DModel": _IMAGE_ALONE,
    "HunyuanVideo15Transformer3DModel": _IMAGE_ALONE,
}


def _joint_processors(model) -> None:
    for name in ("transformer_blocks", "single_transformer_blocks"):
        for block in getattr(model, name, ()):
            processor = block.attn.processor
            if not hasattr(processor, "_parallel_config"):
                continue
            kind = type(processor)
            joint = type(f"Xstage{kind.__name__}", (_Joint, kind), {})()
            joint._attention_backend = processor._attention_backend
            joint._base_config = processor._parallel_config
            block.attn.set_processor(joint)
    # Blocks that refine the text attend to it alone, whole on every rank.
    for module in model.context_embedder.modules():
        processor = getattr(module, "processor", None)
        if hasattr(processor, "_parallel_config"):
            processor._parallel_config = None


class _Joint:
    """Mixed into a processor: tells the backend where the text begins."""

    _base_config = None

    # diffusers reads the signature to see what a processor takes.
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        text = 0 if encoder_hidden_states is None else encoder_hidden_states.shape[1]
        self._parallel_config = JointConfig(self._base_config, text)
        return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)


def _backend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
             return_lse=False, _parallel_config=None):  # fmt: skip
    context = getattr(_parallel_config, "context_parallel_config", None)
    if context is None or context._ulysses_mesh.size() == 1:
        return _alone(query, key, value, attn_mask, scale, enable_gqa)
    if context.ring_degree > 1:
        raise BadInput("xstage has no ring attention: use ContextParallelConfig(ulysses_degree=...) alone")
    if is_causal or dropout_p:
        raise BadInput("attention over ranks has no causal mask and no dropout")
    group = context._ulysses_mesh.get_group()
    text = getattr(_parallel_config, "text", 0)
    if text:
        return _joint(query, key, value, attn_mask, scale, group, text, context.ulysses_anything)
    rows, kv_rows = _lengths(group, query.shape[1], key.shape[1], context.ulysses_anything)
    attention = _attention
    if attn_mask is not None:
        attention = _masked(group, attn_mask, kv_rows)
        context = functional.context_for(
            xstage_group.resolve(group), query, key, None, None, False, "rear", rows, kv_rows, return_lse, attention
        )
        attention.first_head = context.local_heads()[0].start
    found = functional.ulysses_attention(
        query, key, value, group=group, scale=scale, seq_lens=rows, kv_seq_lens=kv_rows, return_lse=return_lse,
        attention=attention,
    )  # fmt: skip
    # diffusers keeps the LSE as [B, S, H].
    return (found[0], found[1].transpose(1, 2)) if return_lse else found


def _alone(query, key, value, attn_mask, scale, enable_gqa):
    if attn_mask is not None and attn_mask.ndim == 2:
        attn_mask = attn_mask[:, None, None, :].bool()
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, scale=scale, enable_gqa=enable_gqa
    )
    return out.transpose(1, 2)


def _joint(query, key, value, attn_mask, scale, group, text, anything):
    image = query.shape[1] - text
    rows, _ = _lengths(group, image, image, anything)
    lengths = None
    if attn_mask is not None:
        # Valid text rows come first, and no image row is masked: a count says it all.
        valid = attn_mask[:, 0, 0, -text:].bool().sum(-1)
        lengths = (valid + sum(rows)).to(torch.int32)
    parts = [x.split([image, text], 1) for x in (query, key, value)]
    out, joint_out = functional.ulysses_attention(
        *(p[0] for p in parts), joint_q=parts[0][1], joint_k=parts[1][1], joint_v=parts[2][1], group=group,
        scale=scale, seq_lens=rows, kv_lengths=lengths, attention=_attention,
    )  # fmt: skip
    return torch.cat([out, joint_out], 1)


def _lengths(group, rows: int, kv_rows: int, anything: bool) -> tuple[list[int], list[int]]:
    world = dist.get_world_size(group)
    if not anything:
        return [rows] * world, [kv_rows] * world
    device = "cpu" if "gloo" in dist.get_backend(group) else "cuda"
    found = torch.empty(world * 2, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(found, torch.tensor([rows, kv_rows], device=device), group=group)
    found = found.tolist()
    return found[0::2], found[1::2]


class _Masked:
    """Attention with a mask over all keys, as a kernel of the user; one for each group and shape."""

    def __init__(self):
        self.mask, self.first_head = None, 0
        self.__name__ = "masked"

    def __call__(self, q, k, v, scale):
        mask, heads = self.mask, q.shape[2]
        if mask.shape[1] > 1:
            mask = mask[:, self.first_head : self.first_head + heads]
        grouped = k.shape[2] != heads
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
        )
        return out.transpose(1, 2)


_masks: dict = {}


def _masked(group, mask, kv_rows) -> _Masked:
    if mask.ndim == 2:
        mask = mask[:, None, None, :]
    if mask.ndim != 4 or mask.shape[2] != 1:
        raise BadInput(f"a mask of {list(mask.shape)}: only masks of keys, [B, 1 or H, 1, S], can be used across ranks")
    rank = dist.get_rank(group)
    if mask.shape[-1] == kv_rows[rank]:
        most = max(kv_rows)
        if mask.dtype == torch.bool:
            mask = mask.to(torch.uint8)
        mine = torch.nn.functional.pad(mask, (0, most - mask.shape[-1])).contiguous()
        found = torch.empty(len(kv_rows) * mine.numel(), dtype=mine.dtype, device=mine.device)
        dist.all_gather_into_tensor(found, mine.flatten(), group=group)
        found = found.view(len(kv_rows), *mine.shape)
        mask = torch.cat([found[r][..., :n] for r, n in enumerate(kv_rows)], -1)
        if mask.dtype == torch.uint8:
            mask = mask.bool()
    elif mask.shape[-1] != sum(kv_rows):
        raise BadInput(f"a mask over {mask.shape[-1]} keys, and there are {sum(kv_rows)}")
    kernel = _masks.setdefault((group.group_name, math.prod(mask.shape)), _Masked())
    kernel.mask = mask
    return kernel
