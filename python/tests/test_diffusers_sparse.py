"""The real WanTransformer3DModel with small random weights: calibrated, tuned, run with masks."""

import numpy
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.diffusers]
torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

import xstage  # noqa: E402
from brute_force import Stored, budgets_of  # noqa: E402
from processes import spawn  # noqa: E402
from xstage import sparse  # noqa: E402

LAYERS, STEPS, HEADS = 2, 3, 2
FRAMES, HEIGHT, WIDTH = 5, 18, 30  # 5 x 9 x 15 tokens: 675, 6 blocks


def wan(heads=HEADS):
    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=heads, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=256, ffn_dim=32, num_layers=LAYERS, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads", rope_max_seq_len=32,
    )  # fmt: skip
    # Norms of weight 1 leave scores near 0, where every block has the same share.
    for block in model.blocks:
        block.attn1.norm_q.weight.data.mul_(3)
    return model.eval()


def generate(model, prompt, size=(FRAMES, HEIGHT, WIDTH), passes=1):
    """Outputs of a generation: each step's input is the last one's output."""
    g = torch.Generator().manual_seed(prompt)
    hidden = torch.randn(1, 4, *size, generator=g)
    texts = [torch.randn(1, 12, 16, generator=g) for _ in range(passes)]
    outputs = []
    with torch.no_grad():
        for step in range(STEPS):
            given = dict(hidden_states=hidden, timestep=torch.tensor([900 - 300 * step]))
            found = [model(encoder_hidden_states=text, return_dict=False, **given)[0] for text in texts]
            outputs += found
            hidden = hidden + 0.5 * sum(found)
    return outputs


class Recorder:
    """Self-attention's queries and keys as diffusers hands them to its own attention."""

    def __init__(self, monkeypatch):
        from diffusers.models.transformers import transformer_wan

        self.calls, inner = [], transformer_wan.dispatch_attention_fn

        def recording(query, key, value, **keywords):
            if query.shape[1] == key.shape[1]:
                self.calls.append((query.numpy().copy(), key.numpy().copy()))
            return inner(query, key, value, **keywords)

        monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", recording)


def calibrated(model, prompts=(1, 2), passes=1):
    from xstage.adapters import diffusers_sparse

    with diffusers_sparse.calibrate(model, steps=STEPS, passes=passes) as calibration:
        outputs = [generate(model, prompt, passes=passes) for prompt in prompts]
    return calibration.maps, outputs


@pytest.mark.parametrize("passes", [1, 2])
def test_maps_and_budgets_equal_attention_that_is_stored_whole(monkeypatch, passes):
    model = wan()
    recorder = Recorder(monkeypatch)
    plain = [generate(model, prompt, passes=passes) for prompt in (1, 2)]
    calls = recorder.calls[:]
    maps, watched = calibrated(model, passes=passes)
    assert all(torch.equal(a, b) for x, y in zip(plain, watched) for a, b in zip(x, y))
    assert (maps.layout, maps.prompts) == (sparse.TokenLayout(5, 9, 15), 2)

    stored = Stored(675, LAYERS, STEPS, HEADS)
    per_prompt = LAYERS * STEPS * passes
    assert len(calls) == 2 * per_prompt
    for i, (q, k) in enumerate(calls):
        step = i % per_prompt // (LAYERS * passes)
        stored.add(i % LAYERS, step, q[0], k[0])
    for layer in range(LAYERS):
        numpy.testing.assert_array_equal(maps.remainders(layer), stored.halves(layer))
    maps.tune(0.7)
    want = budgets_of(stored, 0.7, maps.strength)
    for layer in range(LAYERS):
        for step in range(STEPS):
            numpy.testing.assert_array_equal(numpy.float32(maps.budgets(layer, step)), want.top_p[layer, step])
            assert (maps.mask(layer, step).unpack()[0] == [
                stored.kept(layer, head, want.top_p[layer, step, head]) for head in range(HEADS)
            ]).all()  # fmt: skip


def test_full_density_is_dense_bit_for_bit_and_half_reports_its_error():
    from xstage.adapters import diffusers_sparse

    model = wan()
    processors = [block.attn1.processor for block in model.blocks]
    maps, (dense, _) = calibrated(model)
    with diffusers_sparse.run(model, maps, density=1.0):
        assert all(torch.equal(a, b) for a, b in zip(generate(model, 1), dense))
    maps.tune(1.0)
    with diffusers_sparse.run(model, maps, measure=True) as whole:
        assert all(torch.equal(a, b) for a, b in zip(generate(model, 1), dense))
    assert whole.errors == [[0.0] * LAYERS] * STEPS

    maps.tune(0.5)
    with diffusers_sparse.run(model, maps, measure=True) as half:
        halved = generate(model, 1)
    assert len(half.errors) == STEPS and all(len(row) == LAYERS for row in half.errors)
    errors = numpy.array(half.errors)
    assert (errors > 1e-4).all() and (errors < 0.9).all()
    assert not torch.equal(halved[0], dense[0])
    print("relative error of attention at density 0.5, by step and layer:\n", errors)
    with diffusers_sparse.run(model, maps, density=0.9, measure=True) as most:
        generate(model, 1)
    assert numpy.array(most.errors).max() < errors.max()
    # Nothing is left behind.
    assert [block.attn1.processor for block in model.blocks] == processors
    assert all(torch.equal(a, b) for a, b in zip(generate(model, 1), dense))


def test_each_layer_and_step_has_its_own_mask(monkeypatch):
    """Against torch with the mask written out."""
    from diffusers.models.transformers import transformer_wan
    from xstage.adapters import diffusers_sparse

    model = wan()
    maps, _ = calibrated(model, passes=2)
    maps.tune(0.7)
    with diffusers_sparse.run(model, maps, passes=2):
        found = generate(model, 3, passes=2)
    inner, count = transformer_wan.dispatch_attention_fn, 0

    def masked(query, key, value, **keywords):
        nonlocal count
        if query.shape[1] == key.shape[1]:
            kept = maps.mask(count % LAYERS, count // (LAYERS * 2)).unpack()
            kept = torch.from_numpy(kept.repeat(128, 2).repeat(128, 3)[..., :675, :675].copy())
            keywords["attn_mask"] = kept
            count += 1
        return inner(query, key, value, **keywords)

    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", masked)
    for a, b in zip(found, generate(model, 3, passes=2)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_another_size_resamples_and_other_steps_take_the_nearest():
    from xstage.adapters import diffusers_sparse

    model = wan()
    maps, _ = calibrated(model)
    maps.tune(0.5)
    with diffusers_sparse.run(model, maps, steps=2 * STEPS) as run:
        seen = []
        inner = run.mask_of
        run.mask_of = lambda layer: seen.append((run.step, inner(layer))) or seen[-1][1]
        for _ in range(2):
            generate(model, 1, (4, 20, 32))
        assert run.step == 2 * STEPS - 1
    wide = sparse.TokenLayout(4, 10, 16)
    assert [step for step, _ in seen] == [s for s in range(2 * STEPS) for _ in range(LAYERS)]
    for i, (step, mask) in enumerate(seen):
        assert mask is maps.mask(i % LAYERS, step // 2, layout=wide) and mask.q_rows == 640


def test_misuse_says_what_to_do():
    from xstage.adapters import diffusers_sparse

    model = wan()
    with pytest.raises(xstage.BadInput, match="for diffusers' WanTransformer3DModel"):
        diffusers_sparse.calibrate(torch.nn.Linear(2, 2), steps=1)
    with diffusers_sparse.calibrate(model, steps=STEPS) as calibration:
        generate(model, 1)
        with pytest.raises(xstage.BadInput, match="videos of one size"):
            generate(model, 1, (2, HEIGHT, WIDTH))
    with pytest.raises(xstage.BadInput, match="maps.tune"):
        diffusers_sparse.run(model, calibration.maps)
    with pytest.raises(xstage.BadInput, match="the maps are of 3 layers"):
        diffusers_sparse.run(model, sparse.Maps(sparse.TokenLayout(1, 1, 1), layers=3, steps=1, heads=2))


def uneven_over_ranks(rank, world):
    """Heads of unequal density are dealt out evenly, and come back in their order."""
    from diffusers import ContextParallelConfig
    from xstage.adapters import diffusers as adapter
    from xstage.adapters import diffusers_sparse

    model = wan(heads=4)
    kept = numpy.zeros((4, 6, 6), bool)
    kept[:, range(6), range(6)] = True
    kept[:2] |= numpy.random.default_rng(0).random((2, 6, 6)) < 0.8  # the first rank's heads
    mask = xstage.BlockMask.pack(kept, 675)
    maps, _ = calibrated(model, prompts=(1,))

    def masked():
        with diffusers_sparse.run(model, maps, density=0.5) as run:
            run.mask_of = lambda layer: mask
            return generate(model, 1), run

    alone, _ = masked()
    adapter.enable(model, ContextParallelConfig(ulysses_degree=world, ulysses_anything=True))
    found, run = masked()
    order, _, placed = run._orders[mask]
    assert order.tolist() != [0, 1, 2, 3] and placed.balance(2)[1] < 1.1 < mask.balance(2)[1]
    for a, b in zip(found, alone):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def over_ranks(rank, world):
    from diffusers import ContextParallelConfig
    from xstage.adapters import diffusers as adapter
    from xstage.adapters import diffusers_sparse

    model = wan()
    maps, _ = calibrated(model)
    maps.tune(0.5)
    with diffusers_sparse.run(model, maps):
        alone = generate(model, 1)
    adapter.enable(model, ContextParallelConfig(ulysses_degree=world, ulysses_anything=True))
    with diffusers_sparse.run(model, maps):
        found = generate(model, 1)
    for a, b in zip(found, alone):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [over_ranks, uneven_over_ranks])
def test_two_ranks_give_what_one_gives(body):
    spawn(body, 2)
