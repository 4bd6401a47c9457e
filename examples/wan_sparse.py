"""Block-sparse attention in diffusers' Wan transformer: find the blocks, spend a budget on them, run with it.

    python examples/wan_sparse.py       # a small random model; on the host, or on a Hopper GPU
"""

import torch
from diffusers import WanTransformer3DModel

from xstage.adapters import diffusers_sparse

STEPS = 3
on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)

torch.manual_seed(0)
model = WanTransformer3DModel(
    patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=64, in_channels=4, out_channels=4, text_dim=16,
    freq_dim=256, ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_max_seq_len=64,
).to(device, dtype)  # fmt: skip


@torch.no_grad()
def generate(prompt):
    """What a pipeline does: one forward a step, each on the last one's result."""
    g = torch.Generator().manual_seed(prompt)
    video = torch.randn(1, 4, 5, 18, 30, generator=g).to(device, dtype)  # 5 x 9 x 15 tokens
    text = torch.randn(1, 12, 16, generator=g).to(device, dtype)
    for step in range(STEPS):
        video = video - 0.3 * model(video, torch.tensor([900 - 300 * step], device=device), text, return_dict=False)[0]
    return video


with diffusers_sparse.calibrate(model, steps=STEPS) as calibration:
    dense = [generate(prompt) for prompt in (1, 2)]
maps = calibration.maps
for density in (1.0, 0.8):
    maps.tune(density)
    with diffusers_sparse.run(model, maps, measure=True) as run:
        video = generate(1)
    error = ((video - dense[0]).norm() / dense[0].norm()).item()
    worst = max(error for row in run.errors for error in row)
    print(f"density {maps.density:.3f}: video differs by {error:.1e}, attention by at most {worst:.1e}")
