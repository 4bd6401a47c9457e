#pragma once

// Which tiles of a masked attention each CTA computes, in which order, and in which order the key
// blocks of a tile pass through its ring. Kernel, cost model and tests read these definitions.

#include <cstdint>
#include <vector>

#include "xstage/plan/attention_order.hpp"

namespace xstage::sparse {
class BlockMask;
}

namespace xstage::plan {

/// One tile. Two math groups take the halves of a query block (128 rows), a third group may take
/// half of another block. Keys both blocks attend to are loaded once for all; the others are loaded
/// in turn, so that the groups compute side by side. Key counts are multiples of 128 but for the
/// last key block.
struct alignas(16) SparseTile {
    std::int32_t head = 0, batch = 0;
    std::int32_t block = 0;  ///< query block of groups 0 and 1
    std::int32_t half = 0;   ///< 64-row half block of group 2; 2 * query blocks: none
    std::int32_t common_keys = 0;
    std::int32_t first_keys = 0;   ///< only groups 0 and 1 attend to these
    std::int32_t second_keys = 0;  ///< only group 2 does
    std::int32_t unused = 0;
};

/// Steps of a tile: a step is up to `keys` keys of one list.
struct SparseSteps {
    std::int32_t common = 0, first = 0, second = 0;

    /// K and V of every step.
    XSTAGE_HOST_DEVICE constexpr std::int32_t slots() const {
        return 2 * (common + first + second);
    }
    /// In round r the ring takes, in this order and as far as there are such steps: K of the first
    /// list's step r, K of the second's, V of the first's step r-1, V of the second's. (A list is
    /// the common steps followed by its own; common steps are loaded for the first only.)
    XSTAGE_HOST_DEVICE constexpr std::int32_t rounds() const {
        const std::int32_t own = first > second ? first : second;
        return common + own == 0 ? 0 : common + own + 1;
    }
    /// Whether loader 0..3 (K first, K second, V first, V second) has a step in `round`, and which
    /// of its list it is.
    XSTAGE_HOST_DEVICE constexpr bool loads(std::int32_t loader, std::int32_t round) const {
        const std::int32_t n = step_of(loader, round);
        return loader % 2 == 0 ? n >= 0 && n < common + first : n >= common && n < common + second;
    }
    XSTAGE_HOST_DEVICE static constexpr std::int32_t step_of(std::int32_t loader,
                                                             std::int32_t round) {
        return round - loader / 2;
    }
};

XSTAGE_HOST_DEVICE constexpr SparseSteps steps_of(const SparseTile& t, std::int32_t keys) {
    return {(t.common_keys + keys - 1) / keys, (t.first_keys + keys - 1) / keys,
            (t.second_keys + keys - 1) / keys};
}

/// What a math group skips in the ring: the slots of round n that are only for the others.
struct SparseReader {
    std::int32_t common = 0, other = 0;  ///< steps both take; steps only the other list has
    bool second = false;                 ///< this is group 2

    XSTAGE_HOST_DEVICE constexpr std::int32_t before_key(std::int32_t n) const {
        const std::int32_t own = n - common;
        return second ? own >= 0 && own < other : own >= 2 && own - 2 < other;
    }
    /// Between K of step n and V of step n-1.
    XSTAGE_HOST_DEVICE constexpr std::int32_t before_value(std::int32_t n) const {
        const std::int32_t own = n - common;
        return second ? own >= 1 && own - 1 < other : own >= 0 && own < other;
    }
    /// Behind the last V of a group with `own` steps besides the common ones.
    XSTAGE_HOST_DEVICE constexpr std::int32_t after_last(std::int32_t own) const {
        if (common + own == 0) return 2 * other;
        const std::int32_t fewer = second ? own : own > 0 ? own - 1 : 0;
        const std::int32_t keys = own + 1 < other ? own + 1 : other;
        const std::int32_t values = fewer < other ? fewer : other;
        return 2 * other - keys - values;
    }
};

/// How a compiled kernel cuts its tiles.
struct SparseTiling {
    bool three_groups = false;  ///< tiles of one and a half query blocks, else of one
    std::int32_t keys = 128;    ///< of a step
};

/// The tiles of one launch by worker: worker w takes tiles [begin[w], begin[w+1]) in this order.
struct SparseSchedule {
    std::vector<std::int32_t> begin;
    std::vector<SparseTile> tiles;
    double longest = 0, mean = 0;  ///< load of a worker, in predicted keys of 192 rows
};

/// Heads that share keys stay together and those with most work come first; inside a head the
/// longest tiles go first, each to the worker that has least to do. A mask with fewer heads than
/// `heads` (1, or one per KV head) holds for consecutive heads alike, one with one batch for all.
/// Query blocks that share a tile are neighbours in the head, or of nearly equal length, whichever
/// is predicted faster. Throws Error (kBadInput) if `mask` does not divide the heads.
SparseSchedule sparse_schedule(const sparse::BlockMask& mask, std::int64_t batches,
                               std::int64_t heads, std::int64_t kv_heads, int workers,
                               const SparseTiling& tiling);

}  // namespace xstage::plan
