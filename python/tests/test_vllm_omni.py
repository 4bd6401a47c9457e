"""vLLM-omni's attention layer with its own Ulysses strategy and with xstage's, on two gloo ranks.

Layer, strategy factory, parallel state, forward context and configuration are vLLM-omni's. It has no platform for
machines without an accelerator: the one that it picks is told to use the torch kernel, and which way it is called.
"""

import importlib.util

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed")
for package in ("vllm", "vllm_omni"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

from processes import spawn  # noqa: E402

BOUND = dict(rtol=1e-5, atol=1e-6)


def distributed(rank, world, mode):
    """vLLM-omni's parallel state over the group that exists; returns its configuration."""
    from vllm_omni.diffusion.data import DiffusionParallelConfig, OmniDiffusionConfig
    from vllm_omni.diffusion.distributed import parallel_state
    from vllm_omni.platforms import current_omni_platform
    from vllm_omni.platforms.interface import OmniPlatformEnum

    current_omni_platform._omni_enum = OmniPlatformEnum.XPU
    kernel = "vllm_omni.diffusion.attention.backends.sdpa.SDPABackend"
    current_omni_platform.get_diffusion_attn_backend_cls = lambda **_: kernel
    parallel_state.init_distributed_environment(world, rank, local_rank=rank, backend="gloo")
    parallel_state.initialize_model_parallel(
        data_parallel_size=1, sequence_parallel_size=world, ulysses_degree=world, backend="gloo"
    )
    parallel = DiffusionParallelConfig(ulysses_degree=world, sequence_parallel_size=world, ulysses_mode=mode)
    return OmniDiffusionConfig(parallel_config=parallel)


class Problem:
    """Rows of every rank, text and masks; what rank `rank` passes, and what it must get."""

    def __init__(self, rank, rows, heads, kv_heads, text=0, strategy="front", text_q=None, masked="", batch=2, causal=False):
        g = torch.Generator().manual_seed(sum(rows) + heads)
        normal = lambda n, h: torch.randn(batch, n, h, 16, generator=g)  # noqa: E731
        self.image = [normal(sum(rows), h) for h in (heads, kv_heads, kv_heads)]
        text_q = text if text_q is None else text_q
        self.text = [normal(n, h) for n, h in ((text_q, heads), (text, kv_heads), (text, kv_heads))]
        self.shard = [x.split(rows, 1)[rank].contiguous() for x in self.image]
        self.strategy, self.causal, self.has_text = strategy, causal, text > 0
        self.masks = {}
        if "text" in masked:
            self.masks["joint_attn_mask"] = torch.arange(text) < torch.tensor([[text], [text - 2]])
        if "image" in masked:
            self.masks["attn_mask"] = torch.rand(batch, sum(rows), generator=g) < 0.7
        self.rank, self.rows = rank, rows

    def metadata(self):
        """New in each call: vLLM-omni's strategy writes to it."""
        from vllm_omni.diffusion.attention.backends.abstract import AttentionMetadata

        text = dict(zip(("joint_query", "joint_key", "joint_value"), self.text)) if self.has_text else {}
        return AttentionMetadata(joint_strategy=self.strategy, **text, **self.masks)

    def expected(self):
        """Attention over everything at once, and of it this rank's image rows and all text rows."""
        front = self.strategy == "front"
        parts = [(t, x) if front else (x, t) for x, t in zip(self.image, self.text)]
        q, k, v = (torch.cat(p, 1).transpose(1, 2) for p in parts)
        mask = None
        if self.masks:
            ones = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool)
            n = self.text[1].shape[1]
            halves = (ones[:, :n], ones[:, n:]) if front else (ones[:, -n:], ones[:, :-n])
            for half, name in zip(halves, ("joint_attn_mask", "attn_mask")):
                half &= self.masks.get(name, True)
            mask = ones[:, None, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal, enable_gqa=True
        ).transpose(1, 2)  # fmt: skip
        n = self.text[0].shape[1]
        text, image = (out[:, :n], out[:, n:]) if front else (out[:, out.shape[1] - n :], out[:, : out.shape[1] - n])
        image = image.split(self.rows, 1)[self.rank]
        return torch.cat((text, image) if front else (image, text), 1)


def layer(problem, config):
    from vllm_omni.diffusion.attention.layer import Attention
    from vllm_omni.diffusion.config import set_current_diffusion_config

    heads, kv_heads = (x.shape[2] for x in problem.image[:2])
    with set_current_diffusion_config(config):
        return Attention(heads, 16, problem.causal, 0.25, num_kv_heads=kv_heads)


def compare(rank, config, cases):
    """Each case through both strategies; returns which kernels xstage's calls took."""
    from vllm_omni.diffusion.attention.parallel.ulysses import UlyssesParallelAttention
    from vllm_omni.diffusion.forward_context import set_forward_context
    from xstage.adapters import vllm_omni

    kernels = []
    for rows, *case, extra in cases:
        problem = Problem(rank, rows, *case, **extra)
        with set_forward_context(omni_diffusion_config=config), torch.no_grad():
            module = layer(problem, config)
            assert type(module.parallel_strategy) is UlyssesParallelAttention
            theirs = module(*problem.shard, problem.metadata())
            torch.testing.assert_close(theirs, problem.expected(), **BOUND)
            for attention in (None, vllm_omni.LAYER):
                assert vllm_omni.install(module, attention) == 1
                for _ in range(3):
                    ours = module(*problem.shard, problem.metadata())
                torch.testing.assert_close(ours, theirs, **BOUND)
                kernels.append(kernel(module))
                assert vllm_omni.uninstall(module) == 1
                assert type(module.parallel_strategy) is UlyssesParallelAttention
            if not problem.has_text and not problem.masks:
                assert vllm_omni.install(module) == 1
                torch.testing.assert_close(module(*problem.shard), theirs, **BOUND)
    return kernels


def kernel(module):
    """Of the last call, as "reference", or "SDPAImpl scattered"; the planner may scatter the reference's result."""
    _, name, way, *_ = module.attention.backend.split("/")
    return name if name == "reference" else f"{name} {way}"


PLAIN, OWN = "reference", "SDPAImpl scattered"


def strict(rank, world):
    config = distributed(rank, world, "strict")
    cases = [
        ([6, 6], 4, 4, {}),
        ([6, 6], 8, 2, dict(batch=1)),
        ([6, 6], 4, 4, dict(text=5)),
        ([6, 6], 4, 2, dict(text=5, strategy="rear")),
        ([6, 6], 4, 4, dict(text=5, text_q=0)),
    ]
    found = compare(rank, config, cases)
    assert set(found[0::2]) == {PLAIN} and set(found[1::2]) == {OWN}
    only_the_layers_own = [
        ([6, 6], 4, 4, dict(causal=True)),
        ([6, 6], 4, 2, dict(text=5, masked="text")),
        ([6, 6], 4, 4, dict(text=5, strategy="rear", masked="text and image")),
        ([6, 6], 4, 4, dict(masked="image")),
    ]
    assert set(compare(rank, config, only_the_layers_own)) == {OWN}


def anything(rank, world):
    config = distributed(rank, world, "advanced_uaa")
    cases = [
        ([7, 4], 4, 4, {}),
        ([3, 8], 5, 5, {}),
        ([7, 4], 6, 3, dict(text=5)),
        ([7, 4], 4, 4, dict(text=5, strategy="rear", batch=1)),
    ]
    found = compare(rank, config, cases)
    assert set(found[0::2]) == {PLAIN} and set(found[1::2]) == {OWN}


def other_ways(rank, world):
    """Models built under install, layers outside of a sharded region, calls and layers that are not served."""
    from vllm_omni.diffusion.attention.parallel.ulysses import UlyssesParallelAttention
    from vllm_omni.diffusion.forward_context import get_forward_context, set_forward_context
    from xstage import BadInput
    from xstage.adapters import vllm_omni

    config = distributed(rank, world, "strict")
    problem = Problem(rank, [6, 6], 4, 4)
    shard, expected = problem.shard, problem.expected()
    with set_forward_context(omni_diffusion_config=config), torch.no_grad():
        vllm_omni.install()
        vllm_omni.install(attention="layer")  # the later one counts
        module = layer(problem, config)
        assert vllm_omni.uninstall() == 0
        assert type(layer(problem, config).parallel_strategy) is UlyssesParallelAttention
        torch.testing.assert_close(module(*shard), expected, **BOUND)
        assert kernel(module) == OWN

        strategy, resharded = module.parallel_strategy, []
        before = strategy.before.pre_attention
        strategy.before.pre_attention = lambda *a: resharded.append(1) or before(*a)
        gated = problem.metadata()
        gated.extra["gate_compress"] = shard[0]
        torch.testing.assert_close(module(*shard, gated), expected, **BOUND)
        assert resharded == [1] and gated.extra["gate_compress"].shape[1] == 12

        get_forward_context().sp_plan_hooks_applied = True
        local = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in shard))
        torch.testing.assert_close(module(*shard), local.transpose(1, 2), **BOUND)
        get_forward_context().sp_plan_hooks_applied = False

        *_, context = strategy.pre_attention(*shard, None)
        with pytest.raises(BadInput, match="has not called its"):
            strategy.post_attention(shard[0], context)
        torch.testing.assert_close(module(*shard), expected, **BOUND)

        module.parallel_strategy._sp_group = None  # a layer that has another strategy is left alone
        assert vllm_omni.install(module) == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [strict, anything, other_ways], ids=lambda f: f.__name__)
def test_layer(body):
    spawn(body, 2)
