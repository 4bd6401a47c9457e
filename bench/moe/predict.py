#!/usr/bin/env python3
"""Predicts the layer on two GPUs from what one GPU took, by `xstage simulate`.

Each row of the recorded one-GPU grid gives tile times per order (the whole call shared out over its tiles by their
arithmetic, so the order's own cache behaviour is in them); the simulator adds the link: rows pulled from the peer and
Linear-2's stores. Half of the routes are away, or --away of them; --hot takes the rows that were recorded with a tenth of
the routes to one expert, and predicts that. Intervals come from the fastest and the slowest recorded call.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ORDERS = {"wave:4": {"order": "wave", "wave": 4}, "wave:8": {"order": "wave", "wave": 8},
          "wave:all": {"order": "wave", "wave": 0}, "wave:all*2": {"order": "wave", "wave": 0},
          "alternate+264/16": {"order": "alternate", "slack": 264}, "alternate+132/8*2": {"order": "alternate", "slack": 264}}
WAVES = [name for name in ORDERS if name.startswith("wave")]
INTERLEAVED = {"fp8": "alternate+264/16", "bf16": "alternate+132/8*2"}
TILE, SMS, GPUS = 256, 132, 2


def hot_routing(row, folder):
    """A tenth of the routes to expert 0, the rest evenly, experts of a token distinct; one file for all orders."""
    path = pathlib.Path(folder) / f"{row['shape']}-{row['type']}.json"
    if not path.exists():
        draw = random.Random(1)
        experts, k = GPUS * row["local_experts"], row["top_k"]

        def token():
            ids = draw.sample(range(experts), k)
            if draw.random() < 0.1 * k and 0 not in ids:
                ids[0] = 0
            return ids

        ids = [[token() for _ in range(row["tokens"])] for _ in range(GPUS)]
        path.write_text(json.dumps({"experts": experts, "ids": ids}))
    return str(path)


def scenario(row, order, us, routing):
    h, i = row["hidden"], row["intermediate"]
    n1, n2 = 2 * i // TILE, h // TILE
    per_column = us * 1e3 * SMS / (row["blocks"] * (n1 * h + n2 * i))
    element = 1 if row["type"] == "fp8" else 2
    return {"schema_version": 1, "kind": "xstage.sim_scenario", "name": row["shape"], "path": "st16", "gpus": GPUS,
            "node": "data/nodes/h200x2/sim-node.json",
            "moe": {"hidden": h, "intermediate": i, "experts": GPUS * row["local_experts"], "top_k": row["top_k"],
                    "tokens": row["tokens"], "activation_bytes": element, "weight_bytes": element, "tile_rows": 128,
                    "tile_columns1": TILE, "tile_columns2": TILE, "tile1_ns": per_column * h, "tile2_ns": per_column * i,
                    "dispatch": "pull", **routing, **ORDERS[order]}}


def simulate(xstage, row, order, us, routing):
    result = subprocess.run([xstage, "simulate", "-", "--json", "--threads", "1", "--node",
                             str(ROOT / "data/nodes/h200x2/sim-node.json")],
                            input=json.dumps(scenario(row, order, us, routing)), capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["total_ns"] * 1e-3


def predict(xstage, row, routing):
    measured = row["orders"]
    interleaved = INTERLEAVED[row["type"]]
    us = {name: simulate(xstage, row, name, measured[name]["us"], routing)
          for name in (*WAVES, interleaved) if name in measured}
    wave = min((name for name in WAVES if name in us), key=us.get)
    out = {k: row[k] for k in ("shape", "type", "local_experts", "slice", "top_k", "tokens")}
    for label, name in (("best_wave", wave), ("interleaved", interleaved)):
        ends = [simulate(xstage, row, name, measured[name][e], routing) for e in ("us_least", "us_most")]
        out[label] = {"order": name, "us": us[name], "interval_us": ends, "one_gpu_us": measured[name]["us"]}
    a, b = out["best_wave"], out["interleaved"]
    out["gain"] = a["us"] / b["us"]
    out["gain_interval"] = [a["interval_us"][0] / b["interval_us"][1], a["interval_us"][1] / b["interval_us"][0]]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--xstage", default=str(ROOT / "build/ci/xstage"))
    parser.add_argument("--type", default="fp8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--away", type=float, help="share of the routes that leave their GPU (0.875: as with eight GPUs)")
    parser.add_argument("--hot", action="store_true", help="a tenth of the routes to one expert")
    parser.add_argument("--out", default=str(ROOT / "bench/predictions/moe.json"))
    options = parser.parse_args()
    source = f"bench/results/h200/moe{'_hot' if options.hot else ''}.json"
    recorded = json.loads((ROOT / source).read_text())
    rows = [r for r in recorded["rows"] if r["type"] == options.type]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.threads) as pool:
        def one(row):
            routing = {"routing_file": hot_routing(row, folder)} if options.hot else {"seed": 1}
            if options.away is not None:
                routing["remote_share"] = options.away
            return predict(options.xstage, row, routing)

        predictions = list(pool.map(one, rows))
    head = {"schema_version": 1, "kind": "moe-prediction", "gpus": GPUS,
            "routes_away": 0.5 if options.away is None else options.away, "routing": "hot" if options.hot else "even",
            "node": "data/nodes/h200x2", "from": source, "measured_commit": recorded["provenance"]["git_commit"]}
    lines = ",\n    ".join(json.dumps(p) for p in predictions)
    pathlib.Path(options.out).parent.mkdir(exist_ok=True)
    pathlib.Path(options.out).write_text(json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n    {lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
