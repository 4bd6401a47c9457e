#!/usr/bin/env python3
"""Writes the tables of README.md and docs/ from recorded files; --check says whether they are up to date.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is a function below.
"""
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NODE = ROOT / "data/nodes/h200x2"


def load(path):
    return json.loads((ROOT / path).read_text())


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def number(value):
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def parameter_rows(wanted):
    rows = []
    for e in load(NODE / "profile.json")["profile"]["parameters"]:
        if not wanted(e):
            continue
        value = "not identified" if e["value"] is None else number(e["value"])
        interval = f"{number(e['low'])} to {number(e['high'])}" if e["low"] is not None else ""
        rows.append((f"`{e['name']}`", value, interval, e["unit"], e["meaning"]))
    return table(("parameter", "value", "95% interval", "unit", "meaning"), rows)


def parameters():
    """Those that the recording identified, of the node and of the two paths that kernels use most."""
    return parameter_rows(lambda e: e["value"] is not None and e["name"].split(".")[0] in (e["name"], "st16", "bulk"))


def all_parameters():
    return parameter_rows(lambda e: True)


def held_out():
    def share(line, key):
        return "" if line[key] is None else f"{100 * line[key]:.1f}%"

    rows = [
        (line["what"], line["path"] or "all", line["statistic"], line["rows"], share(line, "median"), share(line, "p90"),
         share(line, "simple_median"), share(line, "simple_p90"))
        for line in load(NODE / "profile.json")["profile"]["held_out"] if line["producers"] == 0 and line["path"] in ("", "st16", "bulk")
    ]
    return table(("rows", "path", "SM", "n", "median error", "90th percentile", "three parameters: median", "90th"), rows)


def held_out_by_sms():
    def pair(line, median, p90):
        return "" if line[median] is None else f"{100 * line[median]:.1f} / {100 * line[p90]:.0f}%"

    cells = {}
    for line in load(NODE / "profile.json")["profile"]["held_out"]:
        key = (line["what"], line["path"] or "all", line["producers"] or "all", line["rows"])
        cells.setdefault(key, {})[line["statistic"]] = line
    rows = [
        (*key, *(pair(by[s], "median", "p90") for s in ("median", "slowest")),
         *(pair(by[s], "simple_median", "simple_p90") for s in ("median", "slowest")))
        for key, by in cells.items() if len(by) == 2
    ]
    return table(("rows", "path", "SMs", "n", "median SM", "slowest SM", "simple, median SM", "simple, slowest SM"), rows)


def rates():
    rows = [(r["engine"].replace("_", " "), r["direction"], f"{r['gbps']:.0f}") for r in load(NODE / "probe.json")["rates"]]
    return table(("engine", "direction", "GB/s"), rows)


def litmus():
    cells = {}
    for r in load(NODE / "litmus.json")["litmus"]:
        cells[(r["fence"], r["formally_required"], r["path"], r["load"])] = f"{r['stale']} of {r['trials'] / 1e6:.0f}M"
    fences = list(dict.fromkeys((f, required) for f, required, _, _ in cells))
    rows = [
        (f"`{fence}`", "yes" if required else "no", *(cells.get((fence, required, path, "loaded"), "") for path in ("st16", "bulk", "red")))
        for fence, required in fences
    ]
    return table(("between message and flag", "formally sufficient", "st16", "bulk", "red"), rows)


def fabric():
    rows = []
    for r in load("bench/results/h200x2/fabric.json")["rows"]:
        if "barrier_us" in r and r.get("rank", 0) == 0:
            rows.append((r["backend"], r["ranks"], r["gpus"], f"{r['barrier_us']['p50']:.1f}", f"{r['call_us']['p50']:.1f}",
                         f"{r['create_1gb_ms']['p50']:.1f}" if "create_1gb_ms" in r else ""))
    return table(("backend", "ranks", "GPUs", "barrier (us)", "begin + publish + acquire (us)", "1 GB buffer created (ms)"), rows)


def attention():
    rows = []
    for r in load("bench/results/h200/attention.json")["rows"]:
        if r["head_dim"] != 128 or r["causal"] or r["heads"] != 24 or r["rows"] % 1024:
            continue
        ours, late = r["contenders"]["xstage"], r["contenders"]["xstage_rescaling_late"]
        rates = [f"{r['contenders'][name]['tflops']:.0f}" for name in ("xstage", "xstage_rescaling_late", "cudnn", "fa3")]
        rows.append((r["rows"], *rates, *(gain_of(ours["speedup_over_" + other]) for other in ("cudnn", "fa3")),
                     f"{late['speedup_over_fa3']['median']:.3f}"))
    return table(("S", "TFLOP/s", "rescaling late", "cuDNN 9.19", "FlashAttention-3", "over cuDNN (95% interval)", "over FlashAttention-3",
                  "rescaling late over FlashAttention-3"), rows)


def gain_of(entry):
    return f"{entry['median']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})"


def attention_error():
    names = ("xstage", "xstage_rescaling_late", "cudnn", "fa3")
    rows = [
        (r["dtype"], r["rows"], r["head_dim"], r["inputs"],
         *(f"{r['errors'][n]['relative_l2']:.3g}" if n in r["errors"] else "" for n in names))
        for r in load("bench/results/h200/attention_error.json")["rows"] if r["inputs"] in ("normal", "large") and r["rows"] >= 4096
    ]
    return table(("type", "S", "D", "inputs", "xstage", "rescaling late", "cuDNN", "FlashAttention-3"), rows)


def ulysses_shapes(name):
    path = f"bench/results/h200/{name}.json"
    return load(path)["shapes"] if (ROOT / path).exists() else []


def ratio_of(entry):
    low, high = entry["interval95"]
    return f"{entry['median']:.3f} ({low:.3f} to {high:.3f})"


def over(shape, a, b):
    """Of medians: the two were timed in turn."""
    v = shape["variants"]
    return f"{v[a]['sender_us'] / v[b]['sender_us']:.3f}" if a in v and b in v else ""


def chosen(shape):
    """What the planner took for the whole call, as a variant of its own."""
    layout = shape["variants"]["attend"]["plan"].split(":")[0]
    return "serial packed" if layout == "scatter" else f"stitched {layout}"


def ulysses_layouts(name, layouts):
    rows = []
    for s in ulysses_shapes(name):
        v = s["variants"]
        cells = [f"{v[n]['sender_over_attention']['median']:.3f}" if n in v else "" for n in layouts]
        picked = chosen(s)
        rows.append((f"{s['rows']} x {s['heads']} x {s['head_dim']}", f"{v['attention alone']['sender_us']:.1f}",
                     *cells, picked.split()[-1], ratio_of(v[picked]["sender_over_attention"])))
    names = [n.replace("stitched ", "") for n in layouts]
    return table(("S x heads x D", "attention alone (us)", *names, "planner takes", "of it (95% interval)"), rows)


CUDNN_LAYOUTS = ("serial packed", "stitched batched", "stitched padded", "stitched pages", "stitched split")


def ulysses_p2():
    return ulysses_layouts("ulysses_p2", CUDNN_LAYOUTS)


def ulysses_p4():
    return ulysses_layouts("ulysses_p4", CUDNN_LAYOUTS)


def ulysses_own():
    return ulysses_layouts("ulysses_own_p2", ("serial packed", "stitched batched", "stitched pages", "stitched peers"))


def ulysses_kernels():
    rows = []
    for cudnn, own in zip(ulysses_shapes("ulysses_p2"), ulysses_shapes("ulysses_own_p2")):
        rows.append((f"{cudnn['rows']} x {cudnn['heads']} x {cudnn['head_dim']}",
                     *(over(cudnn, f"kernels {n}", "attention alone") for n in ("batched", "pages")),
                     *(over(own, f"kernels {n}", "attention alone") for n in ("batched", "pages", "peers"))))
    return table(("S x heads x D", "cuDNN, batched", "cuDNN, pages", "ours, batched", "ours, pages", "ours, peers"), rows)


def ulysses_flash():
    names = ("kernels batched", "kernels pages", "attend, batched", "attend, pages", "attend, serial packed")
    rows = [
        (f"{s['rows']} x {s['heads']} x {s['head_dim']}", kernel, *(f"{s['variants'][n]['over_attention']:.3f}" for n in names))
        for kernel, file in (("3", "ulysses_fa3"), ("4", "ulysses_fa4"))
        for s in load(f"bench/results/h200/{file}.json")["shapes"]
    ]
    return table(("S x heads x D", "FlashAttention", "its calls, batched", "pages", "attend, batched", "pages", "serial packed"), rows)


def ulysses_exchange():
    def cell(shape, name):
        v = shape["variants"].get(name)
        return f"{v['sender_us']:.1f} ({100 * v['copy_over_this']['median']:.0f}%)" if v else ""

    rows = []
    for s in ulysses_shapes("ulysses_p2"):
        v = s["variants"]
        rows.append((f"{s['rows']} x {s['heads']} x {s['head_dim']}", f"{v['copy kernel']['sender_us']:.1f}",
                     f"{v['copy kernel']['read_and_written_gb_per_s']:.0f}",
                     *(cell(s, n) for n in ("exchange kernel", "exchange kernel, naive order", "exchange kernel, flux")),
                     f"{v['first all-to-all']['sender_us']:.1f}"))
    return table(("S x heads x D", "plain copy (us)", "its GB/s", "kernel (us, share of the copy's rate)", "naive order",
                  "with norm and rotation", "with its signals (us)"), rows)


def python_overhead():
    rows = []
    for r in load("bench/results/h200/python.json")["rows"]:
        us = {n: v["median"] for n, v in r["host_us_per_rank"].items()}
        rows.append((r["ranks"], r["rows_per_rank"], f"{us['direct']:.1f}", f"{us['attend_and_scatter']:.1f}",
                     f"{r['overhead_us']['attend_and_scatter']:.1f}", f"{us['attend']:.1f}", f"{r['overhead_us']['attend']:.1f}"))
    return table(("ranks", "rows each", "F.scaled_dot_product_attention", "attend_and_scatter", "more", "attend", "more"), rows)


def moe():
    grouped = {(r["shape"], r["local_experts"]): r for r in load("bench/results/h200/moe_grouped.json")["rows"]}
    rows = []
    for r in load("bench/results/h200/moe_local.json")["rows"]:
        name, best = min(r["orders"].items(), key=lambda order: order[1]["us"])
        other = grouped[r["shape"], r["local_experts"]] if r["type"] == "bf16" else None
        apart = [f"{other[what]['us']:,.0f} ({other[what]['tflops']:.0f})" if other else "" for what in ("layer", "grouped_gemms")]
        rows.append((r["shape"], r["type"], r["local_experts"], f"`{name}`", f"{best['us']:,.0f}", f"{best['tflops']:.0f}",
                     f"{best['tflops_padded']:.0f}", *apart))
    return table(("shape", "type", "experts", "best order", "us", "TFLOP/s useful", "padded", "separate kernels, us (TFLOP/s)",
                  "their GEMMs alone"), rows)


def gains(documents, key):
    """Of each type and slice: how many, the geometric mean and both ends."""
    rows = []
    for kind, document in documents:
        for slice_ in (2, 8):
            found = [(r[key], r["shape"], r["tokens"]) for r in document
                     if r["slice"] == slice_ and r.get("type", kind) == kind]
            if not found:
                continue
            mean = math.exp(sum(math.log(gain) for gain, *_ in found) / len(found))
            ends = [f"{gain:.2f} ({shape}, {tokens} tokens)" for gain, shape, tokens in (min(found), max(found))]
            rows.append((kind, f"1/{slice_} of the experts", len(found), f"{mean:.3f}", *ends))
    return rows


def moe_few_tokens():
    """Weights of the experts that were hit, over the best order's time, against a plain copy's 4.38 TB/s."""
    by = {}
    for r in load("bench/results/h200/moe.json")["rows"]:
        if r["tokens"] == 128:
            weights = 3 * r["hidden"] * r["intermediate"] * (1 if r["type"] == "fp8" else 2) * r["experts_hit"]
            us = min(v["us"] for v in r["orders"].values())
            by.setdefault(r["shape"], {})[r["type"], r["slice"]] = \
                f"{us:,.0f} us, {weights / 1e9:.1f} GB ({weights / us / 1e6 / 4.38:.0%})"
    kinds = [("fp8", 2), ("fp8", 8), ("bf16", 2), ("bf16", 8)]
    return table(("shape", *(f"{kind}, 1/{slice_} of the experts" for kind, slice_ in kinds)),
                 [(shape, *(cells[kind] for kind in kinds)) for shape, cells in by.items()])


def moe_orders():
    rows = load("bench/results/h200/moe.json")["rows"]
    return table(("type", "on the GPU", "n", "geometric mean", "least", "most"),
                 gains([("fp8", rows), ("bf16", rows)], "best_wave_over_best_interleaved"))


def moe_predicted():
    rows = []
    for kind, label, name in (("fp8", "half", "moe"), ("bf16", "half", "moe_bf16"), ("fp8", "7/8", "moe_away"),
                              ("fp8", "half; hot", "moe_hot")):
        for type_, *rest in gains([(kind, load(f"bench/predictions/{name}.json")["rows"])], "gain"):
            rows.append((type_, label, *rest))
    return table(("type", "routes away", "on each GPU", "n", "geometric mean", "least", "most"), rows)


def moe_spans():
    def cell(spans):
        slowest = max(spans, key=lambda s: s["median_ns"])
        return f"{slowest['median_ns']:,.0f} / {slowest['p90_ns']:,.0f}", f"{max(s['first_to_last_us'] for s in spans):,.0f}"

    by = {}
    for r in load("bench/results/h200/moe_spans.json")["rows"]:
        for order, values in r["orders"].items():
            by[r["shape"], order, r["routing"]] = cell(values["store_spans"]), values["us"]
    rows = []
    for shape, order in dict.fromkeys((shape, order) for shape, order, _ in by):
        (home, window), us = by[shape, order, "home"]
        spread = [by[shape, order, routing][0][0] for routing in ("balanced", "away")]
        rows.append((shape, f"`{order}`", f"{us:,.0f}", home, *spread, window))
    return table(("shape", "order", "call, us", "home: median / p90, ns", "balanced", "away", "first to last, us"), rows)


def sparse():
    rows = []
    for r in load("bench/results/h200/sparse.json")["rows"]:
        by = {(c["pattern"], c.get("wanted_density"), c["instance"]): c for c in r["contenders"]}
        tile = "bf16_d128_128x128"
        masked = "bf16_d128_blocks_128x128"

        def over(pattern, density, instance):
            return f"{by[pattern, density, instance]['over_dense']['median']:.3f}"

        def ideal(density):
            shares = [by[pattern, density, masked]["of_ideal"]["median"] for pattern in ("random", "banded", "diagonal")]
            return " / ".join(f"{100 * share:.0f}" for share in shares)

        cudnn = next(c for c in r["contenders"] if c["pattern"] == "cudnn")
        rows.append((r["rows"], r["heads"], f"{cudnn['over_dense']['median']:.2f}", over("dense", None, tile),
                     over("ones", 1.0, masked), *(ideal(d) for d in (0.75, 0.5, 0.25, 0.1))))
    return table(("S", "heads", "cuDNN dense", "dense, same tile", "mask of all ones", "75%", "50%", "25%", "10% density"), rows)


def two_nodes():
    rows = []
    for r in load("bench/predictions/two_nodes.json")["rows"]:
        nodes = "one node of eight" if r["gpus_per_node"] == 8 else "two nodes of four"
        rows.append((f"{r['rows']:,}", nodes, f"{r['total_us']:,.1f}", f"{r['worst_stall_us']:,.1f}"))
    return table(("rows", "GPUs", "total, us", "stall of the worst SM, us"), rows)


def short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def host_bench(name, columns):
    rows = []
    for b in load(ROOT / f"bench/results/host/{name}.json")["benchmarks"]:
        if b.get("aggregate_name") != "median":
            continue
        run = re.sub(r"/(iterations:\d+|real_time|process_time)", "", b["run_name"])
        cells = (short(b[key] * scale) if key in b else "" for key, scale in columns.values())
        rows.append((f"`{run}`", f"{short(b['real_time'])} {b['time_unit']}", *cells))
    return table(("benchmark", "median", *columns), sorted(rows))


def bench_model():
    return host_bench("bench_model", {"CPU s, all threads": ("cpu_time", 1), "peak MB": ("peak_MB", 1)})


def model_recordings():
    cells = {}
    for r in load("bench/results/host/model_recordings.json")["rows"]:
        cells.setdefault((r["fitted"], r["predicted"]), {}).setdefault(r["what"], {})[r["statistic"]] = f"{100 * r['median']:.1f} / {100 * r['p90']:.0f}%"
    kinds = ("isolated", "second", "period", "mean issue")
    rows = [(*names, *(f"{by[kind]['median']}, {by[kind]['slowest']}" for kind in kinds)) for names, by in cells.items()]
    return table(("fitted", "predicted", *kinds), rows)


def bench_sim():
    return host_bench("bench_sim", {"events": ("events", 1), "ns per event": ("s_per_event", 1e9), "peak MiB": ("peak_rss_MiB", 1)})


TABLES = {f.__name__: f for f in (parameters, all_parameters, held_out, held_out_by_sms, rates, litmus, fabric, attention, sparse, bench_model, model_recordings, bench_sim,
                              ulysses_p2, ulysses_p4, attention_error, ulysses_flash, ulysses_own, ulysses_kernels, ulysses_exchange, moe, moe_few_tokens, moe_orders, moe_predicted, moe_spans, two_nodes, python_overhead)}


def main():
    check = sys.argv[1:] == ["--check"]
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        new = re.sub(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
                     lambda m: m.group(1) + TABLES[m.group(2)]() + "\n" + m.group(3), text, flags=re.S)
        if new == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not check:
            path.write_text(new)
    for path in stale:
        print(f"{path}: tables {'are not those of the recorded files; run scripts/tables.py' if check else 'rewritten'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
