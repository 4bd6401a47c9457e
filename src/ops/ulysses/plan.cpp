#include "xstage/ulysses/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/ulysses/layouts.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

std::int64_t sum(const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

std::int64_t Problem::image_q() const {
    return sum(rows_q);
}
std::int64_t Problem::image_kv() const {
    return rows_kv.empty() ? sum(rows_q) : sum(rows_kv);
}

std::vector<std::int64_t> split_rows(std::int64_t rows, int world) {
    if (world < 1 || rows < 0) bad(fmt::format("{} rows over {} ranks", rows, world));
    std::vector<std::int64_t> split(world, rows / world);
    for (int r = 0; r < rows % world; ++r) ++split[r];
    return split;
}

int Heads::max_q() const {
    int most = 0;
    for (const HeadRange& r : q) most = std::max(most, r.count());
    return most;
}
int Heads::max_kv() const {
    int most = 0;
    for (const HeadRange& r : kv) most = std::max(most, r.count());
    return most;
}

Heads split_heads(int heads_q, int heads_kv, int world) {
    if (heads_q < 1 || heads_kv < 1 || world < 1 || heads_q % heads_kv != 0)
        bad(fmt::format(
            "{} query heads over {} key heads on {} ranks: query heads must be a multiple", heads_q,
            heads_kv, world));
    if (heads_q < world)
        bad(fmt::format(
            "{} heads cannot be spread over {} ranks: a rank would have none; use at most {} "
            "ranks",
            heads_q, world, heads_q));
    const int group = heads_q / heads_kv;
    Heads heads;
    if (heads_kv >= world) {
        int next = 0;
        for (std::int64_t count : split_rows(heads_kv, world)) {
            const int end = next + static_cast<int>(count);
            heads.kv.push_back({next, end});
            heads.q.push_back({next * group, end * group});
            next = end;
        }
        return heads;
    }
    // Fewer key heads than ranks: each key head's queries are spread over some ranks of its own, so
    // every rank has one key head and its group is regular whatever its size.
    const std::vector<std::int64_t> ranks = split_rows(world, heads_kv);
    for (int k = 0; k < heads_kv; ++k) {
        if (group < ranks[k])
            bad(fmt::format(
                "{} ranks cannot share {} query heads of one key head: a rank would have "
                "none; use at most {} ranks",
                ranks[k], group, heads_kv * group));
        int next = k * group;
        for (std::int64_t count : split_rows(group, static_cast<int>(ranks[k]))) {
            heads.kv.push_back({k, k + 1});
            heads.q.push_back({next, next + static_cast<int>(count)});
            next += static_cast<int>(count);
        }
    }
    return heads;
}

const char* name_of(Layout layout) {
    switch (layout) {
        case Layout::kAuto:
            return "auto";
        case Layout::kBatched:
            return "batched";
        case Layout::kPadded:
            return "padded";
        case Layout::kPages:
            return "pages";
        case Layout::kSplit:
            return "split";
        case Layout::kScatter:
            return "scatter";
        case Layout::kPeers:
            return "peers";
    }
    return "?";
}

double Plan::tile_ratio() const {
    return static_cast<double>(tiles) / static_cast<double>(tiles_dense);
}

std::size_t Plan::receive_batch_bytes(int rank) const {
    return tensors > 1 ? 0 : static_cast<std::size_t>(problem.rows_q[rank]) * out_row_bytes();
}

std::size_t Plan::receive_offset(int sample, std::int64_t row, int rank) const {
    return static_cast<std::size_t>(sample) * receive_batch_bytes(rank) +
           static_cast<std::size_t>(row) * out_row_bytes();
}

std::size_t Plan::out_row_bytes() const {
    return stitched.row_bytes;
}

namespace {

double total_ns(const Plan& plan) {
    return plan.prediction.plain_ns + plan.prediction.overhead_ns;
}

/// What kAuto may take. `scatter` always is: it adds no tile, and its result is packed.
bool within(const Plan& plan, const PlanOptions& options) {
    if (plan.layout == Layout::kScatter) return true;
    const bool padded = plan.layout == Layout::kPadded || plan.layout == Layout::kPages;
    return plan.tile_ratio() <= options.max_tile_ratio &&
           (!padded || plan.memory_ratio <= options.max_memory_ratio);
}

}  // namespace

Plan make_plan(const Problem& problem, const PlanOptions& options) {
    check(problem);
    const Heads heads = split_heads(problem.heads_q, problem.kv_heads(), problem.world());
    if (options.layout != Layout::kAuto) {
        std::optional<Plan> plan = best_of_layout(problem, heads, options, options.layout);
        if (!plan)
            bad(fmt::format("the layout '{}' cannot serve this problem{}", name_of(options.layout),
                            options.layout == Layout::kPeers ? " or this kernel"
                            : options.own_q                  ? ""
                                                             : " with a Q that is not ours"));
        return *plan;
    }
    // The serial way is a candidate like any other: what is taken is never predicted to be slower.
    std::vector<Plan> candidates;
    for (Layout layout : {Layout::kPeers, Layout::kBatched, Layout::kPages, Layout::kPadded,
                          Layout::kSplit, Layout::kScatter})
        if (std::optional<Plan> plan = best_of_layout(problem, heads, options, layout))
            if (within(*plan, options)) candidates.push_back(std::move(*plan));
    const auto faster = [](const Plan& a, const Plan& b) { return total_ns(a) < total_ns(b); };
    const double least = total_ns(*std::min_element(candidates.begin(), candidates.end(), faster));
    // Predictions are not better than this, and memory is certain.
    constexpr double kTie = 1.005;
    std::erase_if(candidates, [&](const Plan& p) { return total_ns(p) > kTie * least; });
    return *std::min_element(
        candidates.begin(), candidates.end(), [&](const Plan& a, const Plan& b) {
            return a.out_bytes != b.out_bytes ? a.out_bytes < b.out_bytes : faster(a, b);
        });
}

std::string describe(const Plan& plan) {
    return fmt::format(
        "{}: {} kernel call{}, tiles x {:.3f}, result memory x {:.2f} ({} MiB per rank), predicted "
        "overhead {:.1f}%{}",
        name_of(plan.layout), plan.blocks.size(), plan.blocks.size() == 1 ? "" : "s",
        plan.tile_ratio(), plan.memory_ratio, plan.out_bytes >> 20, 100 * plan.prediction.share(),
        plan.copies_q ? ", Q is copied" : "");
}

}  // namespace xstage::ulysses
