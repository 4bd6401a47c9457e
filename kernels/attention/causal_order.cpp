#include "causal_order.hpp"

#include <algorithm>
#include <vector>

namespace xstage::attention {

double CausalTiles::cost(std::int32_t tile) const {
    constexpr std::int64_t kGroupRows = 64;
    double sum = 0;
    for (std::int64_t row = 0; row < rows; row += kGroupRows) {
        const std::int64_t first = std::int64_t{tile} * rows + row;
        if (first >= q_rows) break;
        const std::int64_t seen =
            std::clamp<std::int64_t>(first + kGroupRows + kv_rows - q_rows, 0, kv_rows);
        sum += static_cast<double>((seen + keys - 1) / keys * keys) + kTileOverheadKeys;
    }
    return sum * kGroupRows;
}

double longest_share(const plan::AttentionGrid& grid, const CausalTiles& tiles, int workers) {
    std::vector<double> costs(static_cast<std::size_t>(grid.tiles));
    for (std::int32_t t = 0; t < grid.tiles; ++t)
        costs[static_cast<std::size_t>(t)] = tiles.cost(t);
    double longest = 0;
    for (int worker = 0; worker < workers; ++worker) {
        double share = 0;
        for (std::int32_t round = 0;; ++round) {
            const std::int64_t index = plan::task_index(worker, workers, round, true);
            if (index >= grid.size()) break;
            share += costs[static_cast<std::size_t>(
                plan::tile_at(grid, static_cast<std::int32_t>(index)).tile)];
        }
        longest = std::max(longest, share);
    }
    return longest;
}

std::int32_t causal_group(plan::AttentionGrid grid, const CausalTiles& tiles, int workers,
                          std::int64_t in_l2) {
    // A head shared by three CTAs is read from memory at a third of the rate that they take it, 1.2
    // TB/s on H200 together.
    constexpr int kSharing = 3;
    // Beyond this many rounds any group evens out, and looking for the best one takes long.
    constexpr std::int64_t kRounds = 64;
    constexpr std::int32_t kTried = 8;
    constexpr double kWorthIt = 0.98;

    const std::int64_t sequences = std::int64_t{grid.heads} * grid.batches;
    const std::int64_t most =
        std::clamp<std::int64_t>(std::max<std::int64_t>(in_l2, workers / kSharing), 1, sequences);
    grid.order = plan::TileOrder::kLongestFirst;
    auto best = static_cast<std::int32_t>(most);
    if (grid.size() > kRounds * workers) return best;
    double least = 0;
    const std::int64_t groups = (sequences + most - 1) / most;
    for (std::int64_t n = groups; n < groups + kTried; ++n) {
        grid.group = static_cast<std::int32_t>((sequences + n - 1) / n);
        const double share = longest_share(grid, tiles, workers);
        if (n > groups && share >= least * kWorthIt) continue;
        least = share;
        best = grid.group;
    }
    return best;
}

std::int64_t heads_in_l2(std::int64_t kv_rows, std::int64_t head_dim) {
    constexpr std::int64_t kBytes = 32 << 20;  // of 60 MB on H200; Q and O pass through
    return kBytes / std::max<std::int64_t>(1, kv_rows * head_dim * 4);
}

}  // namespace xstage::attention
