#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>

#include "xstage/error.hpp"
#include "xstage/plan/sparse_order.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::plan {

namespace {

// Measured on H200, bench/notes/sparse.md. A step of the low tile takes this much longer for its
// rows than one of the tall tile; keys that only one of two blocks attends to are loaded for fewer
// rows; start and end of a tile take the time of so many keys.
constexpr double kLowTile = 1.07;
constexpr double kUnsharedKeys = 1.06;
constexpr double kTileOverheadKeys = 160;

/// The rows of one head of a mask, with their number of keys.
struct Head {
    const sparse::BlockMask& mask;
    std::int64_t batch, head;

    std::int32_t keys(std::int32_t block) const {
        return static_cast<std::int32_t>(mask.keys(batch, head, block));
    }
    std::int32_t common(std::int32_t a, std::int32_t b) const {
        const auto x = mask.row(batch, head, a);
        const auto y = mask.row(batch, head, b);
        std::int64_t kept = 0;
        for (std::size_t w = 0; w < x.size(); ++w) kept += std::popcount(x[w] & y[w]);
        const std::int64_t last = mask.key_blocks() - 1;
        const std::int64_t missing = mask.key_blocks() * sparse::kBlock - mask.kv_rows();
        const bool short_one =
            mask.test(batch, head, a, last) && mask.test(batch, head, b, last);
        return static_cast<std::int32_t>(kept * sparse::kBlock - (short_one ? missing : 0));
    }
};

double cost(const SparseTile& t, const SparseTiling& tiling) {
    const SparseSteps steps = steps_of(t, tiling.keys);
    const double own = std::max(steps.first, steps.second);
    if (!tiling.three_groups) {
        return (own * tiling.keys + kTileOverheadKeys) * kLowTile * 2 / 3;
    }
    const double penalty = steps.second == 0 || steps.first == 0 ? 1.0 : kUnsharedKeys;
    return (steps.common + own * penalty) * tiling.keys + kTileOverheadKeys;
}

SparseTile tile_of(const Head& head, std::int32_t a, std::int32_t half) {
    SparseTile t;
    t.block = a;
    t.half = half;
    t.first_keys = head.keys(a);
    const std::int32_t b = half / 2;
    if (b < head.mask.q_blocks()) {
        t.common_keys = head.common(a, b);
        t.first_keys -= t.common_keys;
        t.second_keys = head.keys(b) - t.common_keys;
    }
    return t;
}

std::vector<SparseTile> cut(const Head& head, const std::vector<std::int32_t>& order,
                            const SparseTiling& tiling) {
    const auto none = static_cast<std::int32_t>(2 * head.mask.q_blocks());
    std::vector<SparseTile> tiles;
    std::size_t i = 0;
    if (tiling.three_groups) {
        for (; i + 3 <= order.size(); i += 3) {  // the one in the middle is shared by two tiles
            tiles.push_back(tile_of(head, order[i], 2 * order[i + 1]));
            tiles.push_back(tile_of(head, order[i + 2], 2 * order[i + 1] + 1));
        }
    }
    for (; i < order.size(); ++i) tiles.push_back(tile_of(head, order[i], none));
    return tiles;
}

double total(const std::vector<SparseTile>& tiles, const SparseTiling& tiling) {
    double sum = 0;
    for (const SparseTile& t : tiles) sum += cost(t, tiling);
    return sum;
}

std::vector<SparseTile> tiles_of_head(const Head& head, const SparseTiling& tiling) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(head.mask.q_blocks()));
    std::iota(order.begin(), order.end(), 0);
    std::vector<SparseTile> tiles = cut(head, order, tiling);
    if (tiling.three_groups) {
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            return head.keys(a) > head.keys(b);
        });
        std::vector<SparseTile> sorted = cut(head, order, tiling);
        if (total(sorted, tiling) < total(tiles, tiling)) tiles = std::move(sorted);
    }
    std::stable_sort(tiles.begin(), tiles.end(), [&](const SparseTile& a, const SparseTile& b) {
        return cost(a, tiling) > cost(b, tiling);
    });
    return tiles;
}

}  // namespace

SparseSchedule sparse_schedule(const sparse::BlockMask& mask, std::int64_t batches,
                               std::int64_t heads, std::int64_t kv_heads, int workers,
                               const SparseTiling& tiling) {
    if (heads % mask.heads() != 0 || (mask.batches() != 1 && mask.batches() != batches) ||
        workers < 1 || heads % kv_heads != 0) {
        throw Error(ErrorKind::kBadInput,
                    "block mask: its heads must divide the heads, and its batches be 1 or all");
    }
    // Each head of the mask is cut once, however many heads it holds for.
    std::vector<std::vector<SparseTile>> cuts;
    std::vector<double> loads;
    for (std::int64_t b = 0; b < mask.batches(); ++b) {
        for (std::int64_t h = 0; h < mask.heads(); ++h) {
            cuts.push_back(tiles_of_head(Head{mask, b, h}, tiling));
            loads.push_back(total(cuts.back(), tiling));
        }
    }
    const auto cut_of = [&](std::int64_t batch, std::int64_t head) {
        const std::int64_t b = mask.batches() == 1 ? 0 : batch;
        return static_cast<std::size_t>(b * mask.heads() + head / (heads / mask.heads()));
    };

    const std::int64_t sharing = heads / kv_heads;
    struct Group {
        std::int64_t batch, first_head;
        double load;
    };
    std::vector<Group> groups;
    for (std::int64_t b = 0; b < batches; ++b) {
        for (std::int64_t h = 0; h < heads; h += sharing) {
            double load = 0;
            for (std::int64_t i = 0; i < sharing; ++i) load += loads[cut_of(b, h + i)];
            groups.push_back({b, h, load});
        }
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group& a, const Group& b) { return a.load > b.load; });

    using Worker = std::pair<double, int>;
    std::priority_queue<Worker, std::vector<Worker>, std::greater<>> idle;
    for (int w = 0; w < workers; ++w) idle.emplace(0.0, w);
    std::vector<std::vector<SparseTile>> lists(static_cast<std::size_t>(workers));
    SparseSchedule schedule;
    for (const Group& group : groups) {
        for (std::int64_t h = group.first_head; h < group.first_head + sharing; ++h) {
            for (SparseTile tile : cuts[cut_of(group.batch, h)]) {
                auto [load, worker] = idle.top();
                idle.pop();
                tile.head = static_cast<std::int32_t>(h);
                tile.batch = static_cast<std::int32_t>(group.batch);
                lists[static_cast<std::size_t>(worker)].push_back(tile);
                load += cost(tile, tiling);
                schedule.longest = std::max(schedule.longest, load);
                schedule.mean += cost(tile, tiling) / workers;
                idle.emplace(load, worker);
            }
        }
    }
    schedule.begin.push_back(0);
    for (const std::vector<SparseTile>& list : lists) {
        schedule.tiles.insert(schedule.tiles.end(), list.begin(), list.end());
        schedule.begin.push_back(static_cast<std::int32_t>(schedule.tiles.size()));
    }
    return schedule;
}

}  // namespace xstage::plan
