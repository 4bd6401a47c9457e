"""Threshold maps and budgets against attention that is stored whole, in numpy."""

import json
import os
import struct
import subprocess

import numpy
import pytest
import xstage
from brute_force import Stored, budgets_of
from reference import normal
from xstage import sparse

LAYOUT = sparse.TokenLayout(frames=3, height=9, width=15)  # 405 rows, 4 blocks, the last of 21


def queries_and_keys(seed, layer, heads):
    """Heads that look at what is near in the sequence, over another distance in each layer and head."""
    distance = numpy.array([[60 * (1 + layer) * (1 + head)] for head in range(heads)])
    angles = numpy.arange(LAYOUT.rows)[:, None, None] / (distance * numpy.arange(1, 9))
    wave = numpy.concatenate([numpy.cos(angles), numpy.sin(angles)], 2) * 2
    noise = [normal(seed + i, LAYOUT.rows, heads, 16) for i in range(2)]
    return [(wave + 0.3 * n).astype("float32") for n in noise]


def calibrated(prompts=2, layers=2, steps=2, heads=2):
    """Maps, and the same from stored attention."""
    maps = sparse.Maps(LAYOUT, layers=layers, steps=steps, heads=heads)
    stored = Stored(LAYOUT.rows, layers, steps, heads)
    for prompt in range(prompts):
        for layer in range(layers):
            for step in range(steps):
                q, k = queries_and_keys(100 * prompt + 10 * step, layer, heads)
                maps.add(layer, step, q, k)
                stored.add(layer, step, q, k)
        maps.end_prompt()
    return maps, stored


def test_maps_equal_stored_attention():
    maps, stored = calibrated()
    assert (maps.blocks, maps.prompts, maps.sampled_rows) == (4, 2, stored.rows)
    for layer in range(2):
        numpy.testing.assert_array_equal(maps.remainders(layer), stored.halves(layer))
        for top_p in (0.3, 0.6, 0.9):
            kept = maps.mask(layer, top_p=top_p).unpack()[0]
            assert (kept == (1 - stored.halves(layer).astype("float32") <= numpy.float32(top_p))).all()
            assert kept.any(axis=-1).all()


@pytest.mark.parametrize("density", [0.5, 0.8])
def test_budgets_equal_stored_attention(density):
    maps, stored = calibrated(layers=3, steps=2)
    maps.tune(density)
    assert maps.density == pytest.approx(density, rel=0.01) and maps.density <= density
    want = budgets_of(stored, density, maps.strength)
    for layer in range(3):
        for step in range(2):
            numpy.testing.assert_array_equal(numpy.float32(maps.budgets(layer, step)), want.top_p[layer, step])
            for head in range(2):
                top_p = maps.budgets(layer, step)[head]
                mean, worst = maps.fidelity(layer, step, head, top_p)
                assert mean == pytest.approx(stored.fidelity(layer, step, head, top_p).mean(), abs=1e-6)
                assert worst == pytest.approx(stored.fidelity(layer, step, head, top_p).min(), abs=1e-6)
                assert mean >= want.target[layer, step] - 1e-6
    assert want.target[0, 0] > want.target[2, 1]


def test_attention_mass_of_grouped_and_strided_heads():
    fused = normal(3, 300, 6, 32)
    q, k = fused[:, :4, :16], fused[:, 4:, 16:]
    mass, rows = sparse.attention_mass(q, k, [0, 299], scale=0.4)
    stored = Stored(300, 1, 1, 4)
    p = stored.attention(q, numpy.repeat(k, 2, 1), scale=0.4)
    numpy.testing.assert_allclose(numpy.reshape(mass, (4, 3, 3)), stored.by_block(p), rtol=1e-6, atol=1e-9)
    want = numpy.add.reduceat(p[:, [0, 299]], [0, 128, 256], axis=2)
    numpy.testing.assert_allclose(numpy.reshape(rows, (4, 2, 3)), want, rtol=1e-5, atol=1e-8)


def test_masks_nest_and_reach_their_density():
    maps, _ = calibrated()
    last = None
    for density in (0.2, 0.5, 0.9, 1.0):
        mask = maps.mask(1, density=density)
        assert mask.density() >= density and maps.mask(1, density=density) is mask
        assert last is None or not (last.unpack() & ~mask.unpack()).any()
        last = mask
    assert last.keeps_everything


def test_another_resolution_takes_the_lowest_threshold_of_its_blocks():
    maps, _ = calibrated()
    wide = sparse.TokenLayout(frames=3, height=18, width=30)
    mask = maps.mask(0, top_p=0.6, layout=wide)
    assert (mask.q_rows, mask.shape[2]) == (1620, 13)
    assert mask.density() >= maps.mask(0, top_p=0.6).density() - 0.05
    text = sparse.TokenLayout(frames=3, height=9, width=15, text=7)
    with pytest.raises(xstage.BadInput, match="text"):
        maps.mask(0, top_p=0.6, layout=text)


def test_files_are_those_of_the_command_line(tmp_path):
    maps, _ = calibrated()
    maps.tune(0.6)
    path = tmp_path / "maps.safetensors"
    maps.save(path)
    again = sparse.Maps.load(path)
    assert (again.layout, again.layers, again.steps, again.heads) == (LAYOUT, 2, 2, 2)
    assert again.density == maps.density
    for layer in range(2):
        assert (again.remainders(layer) == maps.remainders(layer)).all()
        assert again.budgets(layer, 1) == maps.budgets(layer, 1)
        assert (again.mask(layer, 0).numpy() == maps.mask(layer, 0).numpy()).all()
    # The header of safetensors: its length, then JSON.
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    assert header["__metadata__"]["format"] == "xstage-sparse" and header["layers.1.remainders"]["dtype"] == "F16"
    if "XSTAGE_CLI" in os.environ:
        shown = subprocess.run(
            [os.environ["XSTAGE_CLI"], "mask", "inspect", str(path), "--json"], capture_output=True, text=True, check=True
        )
        assert json.loads(shown.stdout)["budgets"]["density"] == pytest.approx(maps.density)
    with pytest.raises(xstage.BadInput, match="come from a file"):
        again.add(0, 0, *(normal(i, LAYOUT.rows, 2, 16) for i in range(2)))
    with pytest.raises(xstage.BadInput, match="nothing.safetensors"):
        sparse.Maps.load(tmp_path / "nothing.safetensors")


def test_misuse_says_what_to_do():
    maps = sparse.Maps(LAYOUT, layers=1, steps=2, heads=2)
    q = normal(0, LAYOUT.rows, 2, 16)
    with pytest.raises(xstage.BadInput, match=r"expected \[405, 2, D\]"):
        maps.add(0, 0, q[:400], q[:400])
    with pytest.raises(xstage.BadInput, match="no layer 1"):
        maps.add(1, 0, q, q)
    with pytest.raises(xstage.BadInput, match="no prompt"):
        maps.mask(0, top_p=0.5)
    maps.add(0, 0, q, q)
    with pytest.raises(xstage.BadInput, match="nothing was added for layer 0 step 1"):
        maps.end_prompt()
    maps.add(0, 1, q, q)
    maps.end_prompt()
    with pytest.raises(xstage.BadInput, match="have not been tuned"):
        maps.mask(0, 0)
    with pytest.raises(xstage.BadInput, match="one of step"):
        maps.mask(0)
    with pytest.raises(xstage.BadInput, match="3 values of top_p for 2 heads"):
        maps.mask(0, top_p=[0.1, 0.2, 0.3])
    with pytest.raises(xstage.BadInput, match="least possible"):
        maps.tune(0.01)
    with pytest.raises(xstage.BadInput, match="nan"):
        maps.add(0, 0, numpy.full_like(q, numpy.nan), q)
