#include <algorithm>
#include <functional>
#include <queue>

#include "xstage/error.hpp"
#include "xstage/plan/sparse_order.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::plan {

namespace {

// Start and end of a tile, when its groups wait for first keys and last stores, in keys.
constexpr double kTileOverheadKeys = 160;

double cost(const SparseTile& t) {
    return t.keys + kTileOverheadKeys;
}

std::vector<SparseTile> tiles_of_head(const sparse::BlockMask& mask, std::int64_t batch,
                                      std::int64_t head) {
    std::vector<SparseTile> tiles(static_cast<std::size_t>(mask.q_blocks()));
    for (std::size_t u = 0; u < tiles.size(); ++u) {
        tiles[u].tile = static_cast<std::int32_t>(u);
        tiles[u].keys =
            static_cast<std::int32_t>(mask.keys(batch, head, static_cast<std::int64_t>(u)));
    }
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const SparseTile& a, const SparseTile& b) { return a.keys > b.keys; });
    return tiles;
}

}  // namespace

SparseSchedule sparse_schedule(const sparse::BlockMask& mask, std::int64_t batches,
                               std::int64_t heads, std::int64_t kv_heads, int workers) {
    if (heads % mask.heads() != 0 || (mask.batches() != 1 && mask.batches() != batches) ||
        workers < 1 || heads % kv_heads != 0) {
        throw Error(ErrorKind::kBadInput,
                    "block mask: its heads must divide the heads, and its batches be 1 or all");
    }
    // Each head of the mask is sorted once, however many heads it holds for.
    std::vector<std::vector<SparseTile>> cuts;
    std::vector<double> loads;
    for (std::int64_t b = 0; b < mask.batches(); ++b) {
        for (std::int64_t h = 0; h < mask.heads(); ++h) {
            cuts.push_back(tiles_of_head(mask, b, h));
            double load = 0;
            for (const SparseTile& t : cuts.back()) load += cost(t);
            loads.push_back(load);
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
                load += cost(tile);
                schedule.longest = std::max(schedule.longest, load);
                schedule.mean += cost(tile) / workers;
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
