#include <algorithm>
#include <cmath>

#include "ops/ulysses/layouts.hpp"

namespace xstage::ulysses {

NodeFacts NodeFacts::one_gpu() {
    NodeFacts facts;
    facts.drain_gb_per_s = facts.memory_gb_per_s;
    facts.room_bytes = 1e18;
    return facts;
}

// A wave is one tile per SM, and its stores are one burst: what exceeds the room stalls the SMs for
// (V - Q) / R. SMs drift apart from wave to wave, so later bursts are spread; `drift` is what is
// left. The last wave's remote bytes drain in the open.
Prediction predict_runs(const NodeFacts& node, const std::vector<TileRun>& runs, int heads,
                        std::int64_t keys, int head_dim, std::int64_t tile_rows, int rank) {
    constexpr double kElementBytes = 2;
    const double tile_ns = 4.0 * static_cast<double>(tile_rows) * static_cast<double>(keys) *
                           head_dim / (node.tflops * 1e3 / node.processors);
    const double tile_bytes = static_cast<double>(tile_rows) * head_dim * kElementBytes;
    const double bytes_per_ns = node.drain_gb_per_s;
    Prediction prediction;
    double in_step = 1;
    for (const TileRun& run : runs) {
        // Rows fastest, then heads: a head's tiles repeat.
        const auto per_head = static_cast<std::int64_t>(run.owner.size());
        const std::int64_t total = per_head * heads;
        double last_remote = 0;
        for (std::int64_t first = 0; first < total; first += node.processors) {
            const std::int64_t end = std::min<std::int64_t>(total, first + node.processors);
            double remote = 0;
            for (std::int64_t t = first; t < end; ++t)
                remote +=
                    run.owner[static_cast<std::size_t>(t % per_head)] != rank ? tile_bytes : 0;
            prediction.plain_ns += tile_ns;
            prediction.overhead_ns +=
                in_step * std::max(0.0, (remote - node.room_bytes) / bytes_per_ns);
            in_step *= node.drift;
            last_remote = remote;
        }
        prediction.overhead_ns += last_remote / bytes_per_ns;
    }
    return prediction;
}

namespace {

/// Batch index outermost: the runs of a batched call follow one another over all heads.
std::vector<TileRun> runs_of(const Plan& plan, const Block& block, std::int64_t tile_rows,
                             int rank) {
    const Problem& p = plan.problem;
    const std::int64_t tiles = (block.rows + tile_rows - 1) / tile_rows;
    std::vector<TileRun> runs;
    if (plan.layout == Layout::kPadded || plan.layout == Layout::kPages) {
        TileRun run{tiles, std::vector<int>(static_cast<std::size_t>(tiles), 0)};
        const std::int64_t step = plan.q_map.unit_rows > 0 ? plan.q_map.unit_rows : tile_rows;
        for (int r = 0; r < p.world(); ++r)
            for (std::int64_t row = 0; row < p.rows_q[r]; row += std::min(step, tile_rows))
                run.owner[static_cast<std::size_t>(axis_row(plan.q_map, r, row) / tile_rows)] = r;
        runs.push_back(std::move(run));
        return runs;
    }
    if (plan.layout == Layout::kPeers) {
        // A tile of each rank in turn, from the right neighbour's on (plan::TileOrder::kRotated).
        TileRun run{tiles, {}};
        std::vector<std::int64_t> left(static_cast<std::size_t>(p.world()));
        for (int r = 0; r < p.world(); ++r) left[r] = (p.rows_q[r] + tile_rows - 1) / tile_rows;
        for (bool any = true; any;) {
            any = false;
            for (int i = 1; i <= p.world(); ++i) {
                const int r = (rank + i) % p.world();
                if (left[r]-- <= 0) continue;
                run.owner.push_back(r);
                any = true;
            }
        }
        run.owner.resize(static_cast<std::size_t>(tiles));
        runs.push_back(std::move(run));
        return runs;
    }
    const std::size_t chunk = block.out_batch_bytes;
    const int first = static_cast<int>(block.out_offset / chunk);
    for (int i = 0; i < block.batch; ++i)
        runs.push_back({tiles, std::vector<int>(static_cast<std::size_t>(tiles), first + i)});
    return runs;
}

/// Runs of one kernel call, concatenated head by head, so that waves flow from one to the next.
TileRun joined(const std::vector<TileRun>& runs, int heads) {
    if (runs.size() == 1) return runs.front();
    TileRun all;
    for (const TileRun& run : runs)
        for (int h = 0; h < heads; ++h)
            all.owner.insert(all.owner.end(), run.owner.begin(), run.owner.end());
    all.tiles = static_cast<std::int64_t>(all.owner.size());
    return all;
}

}  // namespace

Prediction predict(const Plan& plan, const PlanOptions& options) {
    const Problem& p = plan.problem;
    const std::int64_t keys = p.image_kv() + p.text_kv;
    Prediction worst;
    for (int rank = 0; rank < p.world(); ++rank) {
        const int heads = plan.heads.q[rank].count();
        const double rank_bytes = static_cast<double>(p.batch) * heads * p.head_dim *
                                  static_cast<double>(fabric::bytes_of(p.dtype));
        Prediction sum;
        for (const Block& block : plan.blocks) {
            if (plan.layout == Layout::kScatter) break;
            const std::vector<TileRun> runs = runs_of(plan, block, options.tile_rows, rank);
            const TileRun run = joined(runs, heads);
            const Prediction one = predict_runs(options.node, {run}, runs.size() == 1 ? heads : 1,
                                                keys, p.head_dim, options.tile_rows, rank);
            sum.plain_ns += one.plain_ns;
            sum.overhead_ns += one.overhead_ns;
        }
        const TileRun dense{plan.tiles_dense,
                            std::vector<int>(static_cast<std::size_t>(plan.tiles_dense), rank)};
        const Prediction plain =
            predict_runs(options.node, {dense}, heads, keys, p.head_dim, options.tile_rows, rank);
        const double copy_ns =
            2 * rank_bytes * static_cast<double>(p.image_q()) / options.node.memory_gb_per_s;
        if (plan.layout == Layout::kScatter) {
            // One kernel reads what the attention kernel left and stores it to its owners.
            const double remote = rank_bytes * static_cast<double>(p.image_q() - p.rows_q[rank]);
            sum.overhead_ns =
                options.node.launch_ns + std::max(copy_ns, remote / options.node.drain_gb_per_s);
        } else {
            const double calls = static_cast<double>(plan.blocks.size()) - p.batch;
            sum.overhead_ns += sum.plain_ns - plain.plain_ns * p.batch;
            sum.overhead_ns += std::max(0.0, calls) * options.node.launch_ns;
        }
        sum.plain_ns = plain.plain_ns * p.batch;
        if (plan.copies_q) sum.overhead_ns += copy_ns + options.node.launch_ns;
        if (sum.plain_ns + sum.overhead_ns > worst.plain_ns + worst.overhead_ns) worst = sum;
    }
    return worst;
}

}  // namespace xstage::ulysses
