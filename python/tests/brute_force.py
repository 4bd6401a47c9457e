"""WEST and FAST from attention that is stored whole, S x S, in float64: docs/sparse.md, followed literally."""

import numpy

BLOCK = 128


def half_above(x):
    """The smallest float16 that is not below x."""
    half = x.astype("float16")
    return numpy.where(half.astype("float64") < x, numpy.nextafter(half, numpy.float16(2)), half)


class Stored:
    """Attention of every prompt, layer, step and head."""

    def __init__(self, rows, layers, steps, heads):
        self.n, self.layers, self.steps, self.heads = rows, layers, steps, heads
        self.starts = numpy.arange(0, rows, BLOCK)
        self.sizes = numpy.diff([*self.starts, rows])
        strata = min(16, rows)
        self.rows = [(2 * i + 1) * rows // (2 * strata) for i in range(strata)]
        self.attended = {}  # (layer, step): one [heads, S, S] per prompt
        self.found = {}

    def attention(self, q, k, scale=None):
        scores = numpy.einsum("qhd,khd->hqk", q.astype("float64"), k.astype("float64"))
        scores = numpy.exp(scores * (scale or q.shape[2] ** -0.5))
        return scores / scores.sum(-1, keepdims=True)

    def add(self, layer, step, q, k):
        self.found.clear()
        self.attended.setdefault((layer, step), []).append(self.attention(q, k))

    def by_block(self, p):
        """Share of each query block's attention on each key block."""
        columns = numpy.add.reduceat(p, self.starts, axis=2)
        return numpy.add.reduceat(columns, self.starts, axis=1) / self.sizes[:, None]

    def thresholds(self, mass):
        """Mass of the blocks of the row that have more."""
        more = mass[..., None, :] > mass[..., :, None]
        return (more * mass[..., None, :]).sum(-1) / mass.sum(-1, keepdims=True)

    def halves(self, layer):
        """float16 remainders [heads, blocks, blocks]: the lowest threshold over prompts and steps."""
        if layer not in self.found:
            each = [
                self.thresholds(self.by_block(p)) for step in range(self.steps) for p in self.attended[layer, step]
            ]
            self.found[layer] = half_above(1 - numpy.min(each, axis=0))
        return self.found[layer]

    def kept(self, layer, head, top_p):
        return 1 - self.halves(layer)[head].astype("float32") <= numpy.float32(top_p)

    def fidelity(self, layer, step, head, top_p):
        """1 - Hellinger distance of each sampled row of the first prompt, pair by pair."""
        p = self.attended[layer, step][0][head, self.rows]
        allowed = self.kept(layer, head, top_p)[numpy.array(self.rows) // BLOCK]
        allowed = allowed.repeat(BLOCK, 1)[:, : self.n]
        rest = numpy.where(allowed, p, 0)
        rest /= rest.sum(-1, keepdims=True)
        distance = numpy.sqrt(((numpy.sqrt(p) - numpy.sqrt(rest)) ** 2).sum(-1) / 2)
        return 1 - distance

    def density(self, layer, head, top_p):
        # Whole pairs, divided as the library does it: heads whose next blocks cost the same then tie in both.
        return (self.kept(layer, head, top_p) * numpy.outer(self.sizes, self.sizes)).sum() / self.n / self.n


class Budgets:
    def __init__(self, layers, steps, heads):
        self.top_p = numpy.zeros((layers, steps, heads), "float32")
        self.target = numpy.zeros((layers, steps))


def budgets_of(stored, density, strength, beta=0.75, gamma=1, omega=1):
    """The budgets of a schedule of this strength, and what rounding leaves spent on the cheapest next blocks."""
    layers, steps, heads = stored.layers, stored.steps, stored.heads
    found = Budgets(layers, steps, heads)
    levels, picked = {}, {}
    for layer in range(layers):
        for head in range(heads):
            levels[layer, head] = numpy.unique(1 - stored.halves(layer)[head].astype("float32"))
        for step in range(steps):
            x = (layer + omega * step) / ((layers - 1) + omega * (steps - 1))
            found.target[layer, step] = 1 - strength * ((1 - beta) + beta * x**gamma)
            for head in range(heads):
                # The strength is the largest that the budget allows, so that one head stands exactly at its target;
                # the library keeps masses in float32.
                target = found.target[layer, step] - 1e-6
                # The last level keeps everything, whatever sums round to.
                fits = [
                    i + 1 == len(levels[layer, head])
                    or stored.fidelity(layer, step, head, p).mean() >= target
                    for i, p in enumerate(levels[layer, head])
                ]
                picked[layer, step, head] = fits.index(True)

    def spent(key, more=0):
        layer, _, head = key
        return stored.density(layer, head, levels[layer, head][picked[key] + more])

    left = density * len(picked) - sum(spent(key) for key in picked)
    while True:
        costs = {
            key: spent(key, 1) - spent(key) for key in picked if picked[key] + 1 < len(levels[key[0], key[2]])
        }
        if not costs:
            break
        key = min(costs, key=lambda k: (costs[k], (k[0] * steps + k[1]) * heads + k[2]))
        if costs[key] > left:
            break
        picked[key] += 1
        left -= costs[key]
    for (layer, step, head), i in picked.items():
        found.top_p[layer, step, head] = levels[layer, head][i]
    return found
