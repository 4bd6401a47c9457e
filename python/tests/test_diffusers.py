"""Real diffusers classes with tiny random weights: two host ranks give what one gives."""

import copy
import os
import traceback

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.diffusers]
torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

from processes import spawn  # noqa: E402


def _g(seed=0):
    return torch.Generator().manual_seed(seed)


def wan(anything):
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=256, ffn_dim=32, num_layers=2, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads", rope_max_seq_len=32,
    )  # fmt: skip
    frames = 3 if anything else 2  # 3 x 3 x 3 or 2 x 3 x 4 tokens
    width = 6 if anything else 8
    return model, dict(
        hidden_states=torch.randn(1, 4, frames, 6, width, generator=_g()),
        timestep=torch.tensor([10]),
        encoder_hidden_states=torch.randn(1, 12, 16, generator=_g(1)),
    )


def flux(anything):
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    n, m = (17, 7) if anything else (16, 8)
    return model, dict(
        hidden_states=torch.randn(1, n, 4, generator=_g()),
        encoder_hidden_states=torch.randn(1, m, 32, generator=_g(1)),
        pooled_projections=torch.randn(1, 32, generator=_g(2)),
        img_ids=torch.randint(0, 8, (n, 3), generator=_g(3)).float(),
        txt_ids=torch.zeros(m, 3),
        timestep=torch.tensor([1.0]),
    )


def flux2(anything):
    model = diffusers.Flux2Transformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, timestep_guidance_channels=256, axes_dims_rope=[4, 4, 4, 4],
    )  # fmt: skip
    n, m = (17, 7) if anything else (16, 8)
    return model, dict(
        hidden_states=torch.randn(1, n, 4, generator=_g()),
        encoder_hidden_states=torch.randn(1, m, 32, generator=_g(1)),
        img_ids=torch.randint(0, 8, (1, n, 4), generator=_g(3)).float(),
        txt_ids=torch.randint(0, 8, (1, m, 4), generator=_g(4)).float(),
        timestep=torch.tensor([1.0]),
        guidance=torch.tensor([1.0]),
    )


def qwen_image(anything, mask=None):
    model = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=16, guidance_embeds=False, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    h, w, m = (5, 3, 7) if anything else (4, 4, 8)
    return model, dict(
        hidden_states=torch.randn(1, h * w, 16, generator=_g()),
        encoder_hidden_states=torch.randn(1, m, 16, generator=_g(1)),
        encoder_hidden_states_mask=mask,
        timestep=torch.tensor([1.0]),
        img_shapes=[(1, h, w)],
    )


def qwen_image_masked(anything):
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    return qwen_image(False, mask)


def hunyuan_video(anything):
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=10, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True,
        text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(2, 4, 4), image_condition_type=None,
    )  # fmt: skip
    frames = 3 if anything else 2
    return model, dict(
        hidden_states=torch.randn(2, 4, frames, 3, 3 if anything else 4, generator=_g()),
        timestep=torch.tensor([5, 5]),
        encoder_hidden_states=torch.randn(2, 12, 16, generator=_g(1)),
        encoder_attention_mask=(torch.arange(12)[None] < torch.tensor([[12], [5]])).long(),
        pooled_projections=torch.randn(2, 8, generator=_g(2)),
        guidance=torch.tensor([1000.0, 1000.0]),
    )


def hunyuan_video_15(anything):
    model = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=8, num_layers=2,
        num_refiner_layers=1, mlp_ratio=2.0, patch_size=1, patch_size_t=1, text_embed_dim=16, text_embed_2_dim=8,
        image_embed_dim=12, rope_axes_dim=(2, 2, 4), target_size=16, task_type="t2v",
    )  # fmt: skip
    frames = 3 if anything else 2
    return model, dict(
        hidden_states=torch.randn(1, 4, frames, 3, 3 if anything else 4, generator=_g()),
        timestep=torch.tensor([5.0]),
        encoder_hidden_states=torch.randn(1, 6, 16, generator=_g(1)),
        encoder_attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]]),
        encoder_hidden_states_2=torch.randn(1, 4, 8, generator=_g(2)),
        encoder_attention_mask_2=torch.tensor([[1, 1, 1, 0]]),
        image_embeds=torch.zeros(1, 3, 12),
    )


def ltx2(anything):
    model = diffusers.LTX2VideoTransformer3DModel(
        in_channels=4, out_channels=4, patch_size=1, patch_size_t=1, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=4,
        audio_attention_head_dim=4, audio_cross_attention_dim=16, num_layers=2, qk_norm="rms_norm_across_heads",
        caption_channels=16, rope_double_precision=False,
    )  # fmt: skip
    frames, h, w = (3, 3, 3) if anything else (2, 4, 4)
    return model, dict(
        hidden_states=torch.randn(1, frames * h * w, 4, generator=_g()),
        audio_hidden_states=torch.randn(1, 6, 4, generator=_g(1)),
        encoder_hidden_states=torch.randn(1, 8, 16, generator=_g(2)),
        audio_encoder_hidden_states=torch.randn(1, 8, 16, generator=_g(3)),
        encoder_attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]]),
        timestep=torch.tensor([500.0]),
        num_frames=frames, height=h, width=w, audio_num_frames=6, fps=24.0,
    )  # fmt: skip


def minimax_h3(anything):
    model = diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=4, attention_head_dim=16, hidden_size=24, num_layers=2, num_refiner_layers=2, ffn_dim=32,
        in_channels=4, audio_in_channels=6, patch_size=(1, 2, 2), text_dim=8, freq_dim=8, time_embed_hidden_dim=24,
        time_embed_dim=16, rope_freq_dim=2,
    )  # fmt: skip
    text, audio, video = 4, 4, 9 if anything else 8
    order = torch.randperm(text + audio + video, generator=_g(9))
    places = [p.sort().values for p in order.split([text, audio, video])]
    tags = torch.empty(len(order), dtype=torch.long)
    for place, tag in zip(places, (1, 2, 0)):
        tags[place] = tag
    return model, dict(
        hidden_states=torch.randn(1, video, 16, generator=_g()),
        audio_hidden_states=torch.randn(1, audio, 6, generator=_g(1)),
        encoder_hidden_states=torch.randn(1, text, 8, generator=_g(2)),
        timestep=torch.tensor([0.3, 0.7]),
        timestep_indices=torch.randint(0, 2, (len(order),), generator=_g(3)),
        token_tags=tags,
        position_ids=torch.randint(0, 6, (len(order), 3), generator=_g(4)),
        video_indices=places[2], audio_indices=places[1], text_indices=places[0],
    )  # fmt: skip


MODELS = {
    f.__name__: f
    for f in (wan, flux, flux2, qwen_image, qwen_image_masked, hunyuan_video, hunyuan_video_15, ltx2, minimax_h3)
}
UNEVEN = ("wan", "flux", "flux2", "qwen_image", "hunyuan_video", "hunyuan_video_15", "minimax_h3")


def outputs(found):
    found = found if isinstance(found, tuple) else (found,)
    return [x for x in found if isinstance(x, torch.Tensor)]


def check_model(name, anything, world, fused=False):
    from diffusers import ContextParallelConfig
    from xstage import group
    from xstage.adapters import diffusers as adapter

    torch.manual_seed(0)
    model, inputs = MODELS[name](anything)
    model = model.eval()
    for g in group._by_name.values():
        for context in list(g._contexts.values()):
            context.close()
        g._contexts.clear()
    adapter.register()
    with torch.no_grad():
        attention_dispatch_reset()
        expected = outputs(model(**copy.deepcopy(inputs), return_dict=False))
        config = ContextParallelConfig(ulysses_degree=world, ulysses_anything=anything)
        adapter.enable(model, config, fused=fused)
        if fused:
            assert any("Fused" in type(getattr(m, "processor", None)).__name__ for m in model.modules())
        for _ in range(2):
            found = outputs(model(**copy.deepcopy(inputs), return_dict=False))
            for a, b in zip(found, expected, strict=True):
                # float32 throughout; the order of sums differs.
                torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    contexts = [c for g in group._by_name.values() for c in g._contexts.values()]
    assert contexts, "attention over ranks has not been used"
    if anything:
        assert any(len(set(c.rows)) > 1 for c in contexts), "no sequence was uneven"


def attention_dispatch_reset():
    from diffusers.models import attention_dispatch

    attention_dispatch._AttentionBackendRegistry.set_active_backend(attention_dispatch.AttentionBackendName.NATIVE)


def models_body(rank, world):
    failures = []
    only = os.environ.get("XSTAGE_TEST_MODELS", ",".join(MODELS)).split(",")
    cases = [(n, False, False) for n in MODELS] + [(n, True, False) for n in UNEVEN]
    cases += [("wan", True, True), ("flux", True, True)]
    for name, anything, fused in cases:
        if name not in only:
            continue
        try:
            check_model(name, anything, world, fused)
        except Exception:
            case = f"{name}, {'uneven' if anything else 'even'}, {'fused' if fused else 'plain'}"
            failures.append(f"{case}: {traceback.format_exc(limit=-8)}")
    assert not failures, "\n".join(failures)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_two_ranks_give_what_one_gives_even_and_uneven():
    spawn(models_body, 2)


def mode_body(rank, world):
    import torch.nn.functional as F
    from xstage.adapters.function_mode import UlyssesMode

    x = torch.randn(1, 4, 13, 16, generator=_g())
    prompt = torch.randn(1, 4, 5, 16, generator=_g(1))
    expected = F.scaled_dot_product_attention(F.scaled_dot_product_attention(x, x, x), prompt, prompt)
    mine = x.split([7, 6], 2)[rank]
    with torch.no_grad(), UlyssesMode(seq_lens=[7, 6]):
        found = F.scaled_dot_product_attention(F.scaled_dot_product_attention(mine, mine, mine), prompt, prompt)
    torch.testing.assert_close(found, expected.split([7, 6], 2)[rank], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_function_mode_takes_self_attention_and_leaves_cross_attention():
    spawn(mode_body, 2)
