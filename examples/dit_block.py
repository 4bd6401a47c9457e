"""A small DiT block on two ranks: `Before` knows one GPU, `After` holds half of the sequence.

    python examples/dit_block.py        # two processes; GPUs where there are two, else the host
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

import xstage


class Before(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attention(self, q, k, v):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    def forward(self, x):  # [B, S, width]
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).unbind(2)
        return x + self.out(self.attention(q, k, v).flatten(2))


class After(Before):
    def attention(self, q, k, v):  # the one change: rows of this rank in, rows of this rank out
        return xstage.ulysses_attention(q, k, v, seq_lens=[9, 8])


@torch.no_grad()
def rank(r, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=r, world_size=2)
    torch.manual_seed(0)
    before, after, x = Before(), After(), torch.randn(1, 17, 64)
    after.load_state_dict(before.state_dict())
    device = f"cuda:{r}" if torch.cuda.device_count() > 1 else "cpu"
    if device == "cpu":
        os.environ["XSTAGE_BACKEND"] = "host"
    else:
        torch.cuda.set_device(device)
        after, x = after.to(device, torch.bfloat16), x.bfloat16()
    error = (after(x.split([9, 8], 1)[r].to(device)).cpu() - before(x.float()).split([9, 8], 1)[r]).abs().max()
    print(f"rank {r}: largest difference {error:.1e}\n", end="", flush=True)  # one write: two processes share the stream
    dist.barrier()


if __name__ == "__main__":
    mp.spawn(rank, args=(29513,), nprocs=2)
