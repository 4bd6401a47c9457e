#!/usr/bin/env python3
"""An attention kernel from a wheel, unmodified, behind Ulysses on virtual ranks of one GPU.

    python3 bench/ulysses/foreign.py --library build/cuda/bench/libxstage_ulysses_c.so --output fa3.json

The kernel is FlashAttention's forward: 3 (package fa3-fwd) or 4 (flash-attn-4). Its calls are recorded from
one whole `attend` and replayed by themselves: what the place of the output costs is their time against the
same kernel with a packed output. Graph replays, contenders in a new random order in each repetition.
"""
import argparse
import ctypes
import datetime
import importlib.metadata
import json
import random
import statistics
import sys

import torch

I32, I64, P, F = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
LAYOUTS = {"batched": 1, "padded": 2, "pages": 3}


def struct(name, fields):
    return type(name, (ctypes.Structure,), {"_fields_": fields})


View = struct("View", [("data", P), ("batch", I64), ("row", I64), ("head", I64)])
Lse = struct("Lse", [("data", P), ("batch", I64), ("head", I64)])
Call = struct("Call", [("struct_size", ctypes.c_size_t), ("rank", I32), ("batch", I32), ("rows_q", I64), ("rows_kv", I64),
                       ("heads_q", I32), ("heads_kv", I32), ("head_dim", I32), ("dtype", I32), ("scale", F), ("q", View),
                       ("k", View), ("v", View), ("out", View), ("lse", Lse), ("lengths", P), ("lengths_stride", I64),
                       ("stream", P), ("own_out", P)])
Kernel = ctypes.CFUNCTYPE(ctypes.c_int, P, ctypes.POINTER(Call))
FabricOptions = struct("FabricOptions", [("struct_size", ctypes.c_size_t), ("backend", I32), ("world", I32), ("rank", I32),
                                         ("name", ctypes.c_char_p), ("devices", ctypes.POINTER(I32)),
                                         ("device_count", ctypes.c_size_t), ("setup_ms", ctypes.c_uint32),
                                         ("wait_ms", ctypes.c_uint32), ("trap", I32), ("fallback", I32),
                                         ("host_page", ctypes.c_size_t)])
Options = struct("Options", [("struct_size", ctypes.c_size_t), ("batch", I32), ("heads_q", I32), ("heads_kv", I32),
                             ("head_dim", I32), ("rows_q", ctypes.POINTER(I64)), ("rows_kv", P), ("text_q", I64),
                             ("text_kv", I64), ("text_front", I32), ("dtype", I32), ("with_lse", I32), ("with_lengths", I32),
                             ("out_pitch", I64), ("layout", I32), ("gathered_only", I32), ("buffers", I32),
                             ("kernel", Kernel), ("user", P), ("returns_packed", I32), ("tile_rows", I64), ("builtin", I32)])
Norm = struct("Norm", [("kind", I32), ("rounding", I32), ("fp32", I32), ("weight", P), ("eps", F)])
Rotary = struct("Rotary", [(n, I32) for n in "kind table math fp32 dims step".split()] + [("cos", P), ("sin", P)]
                + [(n, I64) for n in "batch row head".split()])
Projection = struct("Projection", [("image", View), ("text", View), ("norm", Norm), ("text_norm", Norm), ("rotary", Rotary),
                                   ("text_rotary", Rotary)])
Destination = struct("Destination", [("out", View), ("text", View), ("scale", P), ("scale_batch", I64), ("scale_row", I64)])
Input = struct("Input", [("q", Projection), ("k", Projection), ("v", Projection), ("lengths", P), ("scale", F),
                         ("to", Destination)])
Result = struct("Result", [("out", View), ("text", View), ("lse", Lse), ("text_lse", Lse)])


def tensor(view, batch, rows, heads, dim):
    """A bf16 tensor over memory that is not torch's."""
    interface = {"shape": (batch, rows, heads, dim), "typestr": "<i2", "data": (view.data, False), "version": 3,
                 "strides": tuple(2 * s for s in (view.batch if batch > 1 else rows * view.row, view.row, view.head, 1))}
    holder = type("Holder", (), {"__cuda_array_interface__": interface})()
    return torch.as_tensor(holder, device="cuda").view(torch.bfloat16)


class Fa3:
    package = "fa3-fwd"

    def __init__(self):
        import fa3_fwd._C  # noqa: F401  registers torch.ops.fa3_fwd

    def __call__(self, q, k, v, out, shared):
        """`shared`: all batch indices use keys and values of index 0."""
        index = torch.zeros(q.shape[0], dtype=torch.int32, device="cuda") if shared else None
        torch.ops.fa3_fwd.fwd(q, k, v, None, None, None, out, *[None] * 8, index, *[None] * 7, q.shape[-1] ** -0.5,
                              False, -1, -1, 0, 0.0, True, None, 1, None, 0)


class Fa4:
    package = "flash-attn-4"

    def __init__(self):
        from flash_attn.cute.interface import _flash_attn_fwd

        self.forward = _flash_attn_fwd

    def __call__(self, q, k, v, out, shared):
        if shared:
            k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
        self.forward(q, k, v, softmax_scale=q.shape[-1] ** -0.5, out=out)


KERNELS = {"fa3": Fa3, "fa4": Fa4}


def checked(lib, code):
    if code != 0:
        raise RuntimeError(lib.xstage_last_error().decode())


class Ulysses:
    def __init__(self, lib, kernel, shape, world, layout, packed):
        rows, heads, dim = shape
        self.lib, self.calls, self.failure, self.recording = lib, [], None, False

        def run(_, pointer):
            c = pointer.contents
            try:
                shared = c.batch > 1
                q = tensor(c.q, c.batch, c.rows_q, c.heads_q, c.head_dim)
                k, v = (tensor(t, 1, c.rows_kv, c.heads_kv, c.head_dim) for t in (c.k, c.v))
                out = tensor(c.out, c.batch, c.rows_q, c.heads_q, c.head_dim)
                if self.recording:
                    self.calls.append((q, k, v, out, shared))
                kernel(q, k, v, out, shared)
                return 0
            except Exception as e:  # must not pass through C
                self.failure = e
                return 1

        self.run = Kernel(run)
        devices = (I32 * world)(*[0] * world)
        fo = FabricOptions(struct_size=ctypes.sizeof(FabricOptions), backend=1, world=world, devices=devices,
                           device_count=world)
        self.fabric, self.attention = P(), P()
        checked(lib, lib.xstage_fabric_create(ctypes.byref(fo), ctypes.byref(self.fabric)))
        share = [rows // world + (r < rows % world) for r in range(world)]
        o = Options(struct_size=ctypes.sizeof(Options), batch=1, heads_q=heads, head_dim=dim, rows_q=(I64 * world)(*share),
                    dtype=2, layout=LAYOUTS[layout], buffers=1, kernel=self.run, returns_packed=int(packed))
        checked(lib, lib.xstage_ulysses_create(self.fabric, ctypes.byref(o), ctypes.byref(self.attention)))
        self.inputs, self.results, self.keep = (Input * world)(), (Result * world)(), []
        width = heads * dim
        generator = torch.Generator("cuda").manual_seed(5)
        for r in range(world):
            qkv = torch.randn(share[r], 3, heads, dim, device="cuda", dtype=torch.bfloat16, generator=generator)
            self.keep.append(qkv)
            for i, name in enumerate("qkv"):
                getattr(self.inputs[r], name).image = View(qkv.data_ptr() + 2 * i * width, share[r] * 3 * width, 3 * width, dim)
        self.share, self.shape = share, shape

    def attend(self):
        stream = (P * 1)(torch.cuda.current_stream().cuda_stream)
        code = self.lib.xstage_ulysses_attend(self.attention, self.inputs, ctypes.c_size_t(len(self.inputs)), stream,
                                              ctypes.c_size_t(1), self.results)
        if self.failure:
            raise self.failure
        checked(self.lib, code)

    def rows(self):
        torch.cuda.synchronize()
        return torch.cat([tensor(self.results[r].out, 1, n, self.shape[1], self.shape[2])[0].clone()
                          for r, n in enumerate(self.share)])

    def close(self):
        torch.cuda.synchronize()
        self.lib.xstage_ulysses_destroy(self.attention)
        self.lib.xstage_fabric_destroy(self.fabric)


def measure(lib, kernel, shape, world, repetitions):
    rows, heads, dim = shape
    made = {name: Ulysses(lib, kernel, shape, world, layout, packed)
            for name, layout, packed in (("serial packed", "batched", True), ("batched", "batched", False),
                                         ("pages", "pages", False))}
    work = {}
    for name, u in made.items():
        u.recording = True
        u.attend()
        u.recording = False
        work["attend, " + name] = u.attend
        if name != "serial packed":
            work["kernels " + name] = lambda u=u: [kernel(*c) for c in u.calls]
    alone = [(q, k, v, torch.empty_like(q), False) for q, k, v, _, _ in made["serial packed"].calls]
    work["attention alone"] = lambda: [kernel(*c) for c in alone]
    reference = made["serial packed"].rows()
    differing = {name: int((u.rows().view(torch.int16) != reference.view(torch.int16)).sum()) for name, u in made.items()}
    graphs, times = {}, {name: [] for name in work}
    for name, f in work.items():
        f()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            f()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for i in range(-3, repetitions):
        for name in random.sample(list(graphs), len(graphs)):
            flush.zero_()
            events[0].record()
            graphs[name].replay()
            events[1].record()
            torch.cuda.synchronize()
            if i >= 0:
                times[name].append(1000 * events[0].elapsed_time(events[1]))
    plain = times["attention alone"]
    row = {"rows": rows, "heads": heads, "head_dim": dim, "elements_differing_from_serial": differing, "variants": {
        name: {"us": statistics.median(t), "over_attention": statistics.median(a / b for a, b in zip(t, plain))}
        for name, t in times.items()}}
    graphs.clear()
    for u in made.values():
        u.close()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--kernel", choices=KERNELS, default="fa3")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--commit", default="")
    parser.add_argument("--output", required=True)
    a = parser.parse_args()
    lib = ctypes.CDLL(a.library)
    lib.xstage_last_error.restype = ctypes.c_char_p
    random.seed(1)
    kernel = KERNELS[a.kernel]()
    shapes = [(2048, 24, 128), (4096, 24, 128), (4096, 40, 128), (8192, 40, 128)]
    document = {"schema_version": 1, "kind": "bench-ulysses-foreign", "provenance": {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "git_commit": a.commit,
        "kernel": f"{kernel.package} {importlib.metadata.version(kernel.package)}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "argv": sys.argv},
        "ranks": a.ranks, "shapes": []}
    for shape in shapes:
        with torch.cuda.stream(torch.cuda.Stream()):
            document["shapes"].append(measure(lib, kernel, shape, a.ranks, a.repetitions))
        print(shape, {n: round(v["over_attention"], 3) for n, v in document["shapes"][-1]["variants"].items()},
              document["shapes"][-1]["elements_differing_from_serial"], file=sys.stderr)
    with open(a.output, "w") as f:
        json.dump(document, f, indent=1)


if __name__ == "__main__":
    main()
