#include "ops/ulysses/layouts.hpp"

#include <algorithm>
#include <numeric>

#include "xstage/plan/attention_order.hpp"

namespace xstage::ulysses {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

std::int64_t longest(const Problem& p) {
    return *std::max_element(p.rows_q.begin(), p.rows_q.end());
}

std::size_t row_bytes(const Problem& p) {
    return static_cast<std::size_t>(p.pitch()) * fabric::bytes_of(p.dtype);
}

std::int64_t natural_start(const Problem& p, int rank) {
    return std::accumulate(p.rows_q.begin(), p.rows_q.begin() + rank, std::int64_t{0});
}

/// Text stands after the axis in a buffer of ours, and where the caller has it in a foreign one.
void place_text(Plan& plan, std::int64_t axis_rows) {
    const Problem& p = plan.problem;
    const bool front = !plan.own_q && !plan.copies_q && p.text_place == TextPlace::kFront;
    plan.q_text_row = front ? 0 : axis_rows;
    plan.q_rows = axis_rows + p.text_q;
    if (!front) return;
    for (int r = 0; r < p.world(); ++r) plan.q_map.start[r] += p.text_q;
    for (Block& b : plan.blocks) b.q_row += p.text_q;
}

Plan start(const Problem& problem, const Heads& heads, const PlanOptions& options, Layout layout) {
    Plan plan;
    plan.problem = problem;
    plan.heads = heads;
    plan.layout = layout;
    plan.own_q = options.own_q;
    plan.q_map.world = problem.world();
    plan.tiles_dense = ceil_div(problem.image_q(), options.tile_rows);
    plan.stitched.dtype = problem.dtype;
    plan.stitched.tile_rows = options.tile_rows;
    return plan;
}

void finish(Plan& plan, const PlanOptions& options) {
    const Problem& p = plan.problem;
    plan.memory_ratio =
        static_cast<double>(plan.out_bytes) * p.world() /
        (static_cast<double>(p.image_q()) * p.batch * static_cast<double>(row_bytes(p)));
    plan.prediction = predict(plan, options);
}

/// `batched`, `split`, `scatter` and `peers`: chunks of equal size, rows packed, sample after
/// sample.
std::optional<Plan> packed(const Problem& p, const Heads& heads, const PlanOptions& options,
                           Layout layout) {
    Plan plan = start(p, heads, options, layout);
    const int world = p.world();
    const std::int64_t most = longest(p);
    plan.stitched.kind = fabric::LayoutKind::kBatched;
    plan.stitched.rows.assign(world, most * p.batch);
    plan.stitched.row_bytes = row_bytes(p);
    const auto chunk =
        static_cast<std::size_t>(ceil_div(
            static_cast<std::int64_t>(static_cast<std::size_t>(most * p.batch) * row_bytes(p)),
            static_cast<std::int64_t>(options.page_bytes))) *
        options.page_bytes;
    plan.out_bytes = chunk;
    // In memory of ours every chunk has room for the longest, so one batch stride serves all.
    const bool even_stride = plan.own_q && layout == Layout::kBatched;
    for (int r = 0; r < world; ++r)
        plan.q_map.start[r] = even_stride ? r * most : natural_start(p, r);

    auto block = [&](int sample, int rank, int count, std::int64_t rows) {
        Block b;
        b.sample = sample;
        b.batch = count;
        b.rows = rows;
        b.q_row = plan.q_map.start[rank];
        b.q_batch_rows = most;
        b.out_offset = static_cast<std::size_t>(rank) * chunk +
                       static_cast<std::size_t>(sample) * static_cast<std::size_t>(p.rows_q[rank]) *
                           row_bytes(p);
        b.out_batch_bytes = chunk;
        b.out_row_bytes = row_bytes(p);
        plan.blocks.push_back(b);
        plan.tiles += sample == 0 ? count * ceil_div(rows, options.tile_rows) : 0;
    };
    if (layout == Layout::kSplit) {
        for (int s = 0; s < p.batch; ++s)
            for (int r = 0; r < world; ++r)
                if (p.rows_q[r] > 0) block(s, r, 1, p.rows_q[r]);
        place_text(plan, p.image_q());
        finish(plan, options);
        return plan;
    }
    if (layout == Layout::kScatter || layout == Layout::kPeers) {
        // All rows in natural order; `peers` has a call per sample, since its LSE is sent by
        // sample.
        if (layout == Layout::kPeers &&
            (!options.peers || world > plan::kMaxDestinations || plan.tiles_dense < 1))
            return std::nullopt;
        for (int s = 0; s < (layout == Layout::kPeers ? p.batch : 1); ++s) {
            block(s, 0, 1, p.image_q());
            plan.blocks.back().out_batch_bytes = plan.blocks.back().out_offset = 0;
        }
        place_text(plan, p.image_q());
        finish(plan, options);
        return plan;
    }
    // Ranks with equal rows at the front go in one call; a shorter tail one by one. With an own Q
    // all go in one call, and a short chunk's pad rows are computed and thrown away: only where a
    // sample is not followed by another, whose rows they would overwrite.
    int equal = 1;
    while (equal < world && p.rows_q[equal] == p.rows_q[0]) ++equal;
    const bool one_call = equal == world || (plan.own_q && p.batch == 1);
    if (!one_call && equal + 1 < world) return std::nullopt;
    if (!one_call && p.rows_q[0] == 0) return std::nullopt;
    for (int s = 0; s < p.batch; ++s) {
        block(s, 0, one_call ? world : equal, one_call ? most : p.rows_q[0]);
        if (!one_call && !even_stride) plan.blocks.back().q_batch_rows = p.rows_q[0];
        if (!one_call && p.rows_q[equal] > 0) block(s, equal, 1, p.rows_q[equal]);
    }
    place_text(plan, even_stride ? most * world : p.image_q());
    finish(plan, options);
    return plan;
}

/// One query axis in a tensor per sample. `stride` is a divisor of the page.
Plan on_axis(const Problem& p, const Heads& heads, const PlanOptions& options, Layout layout,
             std::size_t stride) {
    Plan plan = start(p, heads, options, layout);
    plan.copies_q = !options.own_q;
    plan.tensors = p.batch;
    plan.stitched.kind = fabric::LayoutKind::kPadded;
    plan.stitched.order =
        layout == Layout::kPages ? fabric::ChunkOrder::kPages : fabric::ChunkOrder::kWhole;
    plan.stitched.rows = p.rows_q;
    plan.stitched.row_bytes = stride;
    const std::size_t unit = std::max(stride, options.page_bytes);
    const auto unit_rows = static_cast<std::int64_t>(unit / stride);
    std::int64_t next = 0;
    for (int r = 0; r < p.world(); ++r) {
        const std::int64_t units = ceil_div(p.rows_q[r], unit_rows);
        plan.q_map.units[r] = units;
        plan.q_map.start[r] = next;
        next += units * unit_rows;
        plan.out_bytes = std::max(plan.out_bytes, static_cast<std::size_t>(units) * unit * p.batch);
    }
    if (layout == Layout::kPages) plan.q_map.unit_rows = unit_rows;
    std::int64_t axis_rows = 0;
    for (int r = 0; r < p.world(); ++r)
        if (p.rows_q[r] > 0)
            axis_rows = std::max(axis_rows, axis_row(plan.q_map, r, p.rows_q[r] - 1) + 1);
    for (int s = 0; s < p.batch; ++s)
        plan.blocks.push_back({s, 1, axis_rows, 0, 0, s, 0, 0, stride});
    plan.tiles = ceil_div(axis_rows, options.tile_rows);
    place_text(plan, axis_rows);
    finish(plan, options);
    return plan;
}

}  // namespace

std::optional<Plan> best_of_layout(const Problem& problem, const Heads& heads,
                                   const PlanOptions& options, Layout layout) {
    if (layout != Layout::kPadded && layout != Layout::kPages)
        return packed(problem, heads, options, layout);
    // Wider rows make smaller pads at the ends of chunks, and more memory: the narrowest within the
    // limit of tiles, or the one with the fewest tiles.
    std::optional<Plan> best;
    std::size_t stride = fabric::padded_row_stride(row_bytes(problem), options.page_bytes);
    for (;; stride *= 2) {
        const Plan plan = on_axis(problem, heads, options, layout, stride);
        if (best && plan.memory_ratio > options.max_memory_ratio) break;
        if (!best || plan.tiles < best->tiles) best = plan;
        if (best->tile_ratio() <= options.max_tile_ratio) break;
        if (stride >= options.page_bytes || options.page_bytes % (2 * stride) != 0) break;
    }
    return best;
}

}  // namespace xstage::ulysses
