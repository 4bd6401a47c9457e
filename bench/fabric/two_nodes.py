#!/usr/bin/env python3
"""What `xstage simulate` expects of two nodes, beside one node with as many GPUs: bench/predictions/two_nodes.json."""
import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ATTENTION_NS = {115456: 34e6, 4608: 57e3}  # given, of rows


def simulate(xstage, rows, gpus_per_node):
    scenario = json.loads((ROOT / "examples/two_nodes.json").read_text())
    scenario["ulysses"] |= {"sequence": rows, "attention_ns": ATTENTION_NS[rows]}
    scenario["gpus_per_node"] = gpus_per_node
    if gpus_per_node == scenario["gpus"]:
        del scenario["gpus_per_node"]
    command = [xstage, "simulate", "-", "--json", "--node", str(ROOT / "data/nodes/two-nodes/sim-node.json")]
    result = json.loads(subprocess.run(command, input=json.dumps(scenario), capture_output=True, text=True, check=True).stdout)
    worst = max(max(rank["sms"]["stall_ns"]) for rank in result["ranks"])
    return {"rows": rows, "gpus_per_node": gpus_per_node, "total_us": result["total_ns"] * 1e-3, "worst_stall_us": worst * 1e-3}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--xstage", default=str(ROOT / "build/ci/xstage"))
    xstage = parser.parse_args().xstage
    rows = [simulate(xstage, rows, per_node) for rows in ATTENTION_NS for per_node in (4, 8)]
    head = {"schema_version": 1, "kind": "two-nodes-prediction", "scenario": "examples/two_nodes.json", "gpus": 8}
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    out = ROOT / "bench/predictions/two_nodes.json"
    out.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n    {lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
