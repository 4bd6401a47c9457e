"""xstage as the Ulysses strategy of vLLM-omni's diffusion attention. Tried with vllm-omni 0.32.0rc1 over vllm 0.32.0.

    from xstage.adapters import vllm_omni
    vllm_omni.install()                 # in the worker, before the model is built; install(model) afterwards

vLLM-omni parts transport from kernel: a strategy reshards in front of the layer's kernel and back behind it, so the
kernel never learns where its output belongs. Here the strategy lets the shards pass, and what stands in the place of
the layer's kernel does both exchanges and the attention between them, which is then told where to store.

`attention`, as in xstage.Ulysses, computes plain calls, and its stores are the second all-to-all. The layer's own
kernel computes what needs more (masks, causality, quantised keys, backend options), or every call with
`attention="layer"`; it allocates its output, so one scatter kernel sends that on. Calls that need an exchange of
another kind go where they went before: ring, gathered keys, cross attention, paged keys, a VSA gate, float32 on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from vllm_omni.diffusion.attention import layer as original
from vllm_omni.diffusion.attention.parallel import ulysses as theirs
from vllm_omni.diffusion.attention.parallel.base import ParallelAttentionContext
from vllm_omni.diffusion.forward_context import get_forward_context, get_ulysses_mode, is_forward_context_available

from xstage import functional
from xstage import group as xstage_group
from xstage._errors import BadInput

LAYER = "layer"
_initialise = None
_kernels: dict = {}


def install(model=None, attention=None) -> int:
    """Takes the place of vLLM-omni's Ulysses strategy; returns in how many layers that exist.

    model: its attention layers; None: those of models built from now on in this process.
    attention: a kernel as in xstage.Ulysses, or "layer" for each layer's own.
    """
    global _initialise
    if model is not None:
        return sum(_equip(module, attention) for module in model.modules() if isinstance(module, original.Attention))
    _initialise = _initialise or original.Attention.__init__
    before = _initialise

    @functools.wraps(before)
    def initialise(self, *args, **keywords):
        before(self, *args, **keywords)
        _equip(self, attention)

    original.Attention.__init__ = initialise
    return 0


def uninstall(model=None) -> int:
    """Undoes `install` of the same argument; returns how many layers have their own strategy back."""
    global _initialise
    if model is None:
        if _initialise is not None:
            original.Attention.__init__, _initialise = _initialise, None
        return 0
    found = [m for m in model.modules() if isinstance(getattr(m, "parallel_strategy", None), UlyssesStrategy)]
    for module in found:
        strategy = module.parallel_strategy
        module.parallel_strategy, module.attention = strategy.before, strategy.exchange.kernel
    return len(found)


def _equip(module, attention) -> bool:
    before = module.parallel_strategy
    if type(before) is not theirs.UlyssesParallelAttention or not _plain_ulysses(module, before):
        return False
    module.attention = exchange = Exchange(module, before, attention)
    module.parallel_strategy = UlyssesStrategy(before, exchange)
    return True


def _plain_ulysses(module, strategy) -> bool:
    if strategy._sp_group.ring_world_size > 1 or (strategy._scatter_idx, strategy._gather_idx) != (2, 1):
        return False
    return not (module._has_custom_attention or module._explicit_cross_contract or module.paged_kv_cache_role)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shards(ParallelAttentionContext):
    """Says that the exchanges are the kernel's business."""


class UlyssesStrategy:
    """vLLM-omni's ParallelAttentionStrategy, bound to the Exchange that stands for the layer's kernel."""

    enabled = True
    name = "ulysses"  # the layer looks for it

    def __init__(self, before, exchange: Exchange):
        self.before, self.exchange = before, exchange

    @torch.compiler.disable
    def pre_attention(self, query, key, value, attn_metadata):
        """Lets the shards of a call that is served pass, [B, S_local, H, D]; reshards others as before."""
        if not self.exchange.serves(query, attn_metadata):
            return self.before.pre_attention(query, key, value, attn_metadata)
        self.exchange.expected = query
        return query, key, value, attn_metadata, _Shards(self.name)

    @torch.compiler.disable
    def post_attention(self, attn_output, ctx):
        """The result [B, S_local, H, D] as it is, text in front or behind; lent, as xstage.Ulysses says."""
        if not isinstance(ctx, _Shards):
            return self.before.post_attention(attn_output, ctx)
        if self.exchange.expected is not None:
            self.exchange.expected = None
            raise BadInput("the layer has not called its `attention`, which exchanges: uninstall(model) for such a call")
        return attn_output


class Exchange:
    """In the place of a layer's kernel (AttentionImpl): first all-to-all, attention, stores to the owners.

    kernel: what stood there; backend: of the call that was made last, as in xstage.Ulysses.
    """

    def __init__(self, module, before, attention):
        self.kernel, self.attention = module.attention, attention
        self.scale, self.causal = module.softmax_scale, module.causal
        self.process_group = before._ulysses_pg
        self.expected, self.backend, self._own = None, "", None

    def __getattr__(self, name):
        if name == "kernel":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def serves(self, query, metadata) -> bool:
        if query.dtype == torch.float32 and query.is_cuda:
            return False
        return metadata is None or (metadata.cross_query_mask is None and "gate_compress" not in metadata.extra)

    @torch.compiler.disable
    def forward(self, query, key, value, attn_metadata=None):
        """Of shards what the strategy let pass; of anything else the kernel's own result."""
        if query is not self.expected:
            return self.kernel.forward(query, key, value, attn_metadata)
        self.expected = None
        rows = _rows(self.process_group, query)
        text, strategy = [None] * 3, "rear"
        if attn_metadata is not None and attn_metadata.joint_query is not None:
            strategy = attn_metadata.joint_strategy
            text = [attn_metadata.joint_query, attn_metadata.joint_key, attn_metadata.joint_value]
            if text[0].shape[1] == 0:
                text[0] = None  # keys of a prompt that is cached, and no queries
        attention = self.attention
        own = attention == LAYER or self.causal or not _nothing_more(attn_metadata)
        if own:
            attention = _kernels.setdefault(type(self.kernel), LayerKernel(type(self.kernel).__name__))
            attention.kernel = self.kernel
            attention.metadata = _whole(attn_metadata, sum(rows), text[1], strategy, query)
        try:
            found = functional.ulysses_attention(
                query, key, value, group=self.process_group, scale=self.scale, joint_q=text[0], joint_k=text[1],
                joint_v=text[2], joint_strategy=strategy, seq_lens=rows, attention=attention,
            )  # fmt: skip
        finally:
            if own:
                attention.kernel = attention.metadata = None
        if own is not self._own:
            group = xstage_group.resolve(self.process_group)
            context = functional.context_for(
                group, query, key, text[0], text[1], False, strategy, rows, None, False, attention
            )
            self.backend, self._own = context.backend, own
        if not isinstance(found, tuple):
            return found
        return torch.cat(found[::-1] if strategy == "front" else found, dim=1)


class LayerKernel:
    """The kernel of the layer that is being computed, as a callable that allocates its output.

    One for all layers with the same kind of kernel, since they share contexts.
    """

    def __init__(self, name: str):
        self.__name__ = name
        self.kernel = self.metadata = None

    def __call__(self, q, k, v, scale):
        return self.kernel.forward(q, k, v, self.metadata)


def _rows(process_group, query) -> list[int]:
    world, mine = torch.distributed.get_world_size(process_group), query.shape[1]
    equal = is_forward_context_available() and get_forward_context().sp_rank_local_seq_lens_equal
    if equal or get_ulysses_mode(default="strict") != "advanced_uaa":
        return [mine] * world
    return theirs._all_gather_int(process_group, mine, device=query.device)


def _nothing_more(metadata) -> bool:
    """Whether q, k and v say all there is to a call."""
    if metadata is None:
        return True
    more = (
        metadata.attn_mask, metadata.joint_attn_mask, metadata.full_attn_spans, metadata.query_ranges,
        metadata.packed_padding,
    )  # fmt: skip
    return all(x is None for x in more) and not metadata.extra


def _whole(metadata, rows: int, text_k, strategy: str, query):
    """What a kernel that sees all rows and no separate text is told; masks of keys are joined as the keys are."""
    if metadata is None:
        return None
    image, text = metadata.attn_mask, metadata.joint_attn_mask
    if text_k is not None and any(x is not None and x.ndim == 2 for x in (image, text)):
        ones = functools.partial(torch.ones, dtype=torch.bool, device=query.device)
        image = ones(query.shape[0], rows) if image is None else image.bool()
        text = ones(query.shape[0], text_k.shape[1]) if text is None else text.bool()
        image = torch.cat([text, image] if strategy == "front" else [image, text], 1)
    return dataclasses.replace(
        metadata, attn_mask=image, joint_attn_mask=None, joint_query=None, joint_key=None, joint_value=None
    )
