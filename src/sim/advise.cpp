#include "sim/advise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/split.hpp"
#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

using plan::MoeOrderKind;
using plan::Phase;

std::string order_name(const plan::MoeOrder& order) {
    switch (order.kind) {
        case MoeOrderKind::kWave:
            return order.wave > 0 ? fmt::format("wave({})", order.wave) : "wave(all)";
        case MoeOrderKind::kAlternate:
            return "alternate";
        case MoeOrderKind::kLead:
            return fmt::format("lead({})", order.lead);
        case MoeOrderKind::kRatio:
            return "ratio";
    }
    return "";
}

/// Sums over rows of one GPU, so that any run of rows costs two look-ups.
struct RowSums {
    std::vector<double> ones_ns{0}, twos_ns{0}, bytes{0};  // SM time of all tiles, remote bytes
    MoeRows rows;
    int n1 = 1, n2 = 1;
    double tile1_ns = 0;

    RowSums(const Cluster& cluster, const Moe& moe, int rank)
        : rows(moe_rows(moe, cluster.gpus, rank)) {
        n1 = moe.columns1();
        n2 = moe.columns2();
        const int local = moe.experts / cluster.gpus;
        for (std::size_t r = 0; r < rows.tokens.size(); ++r) {
            const auto e = static_cast<std::size_t>(rows.expert[r]);
            const TileTimes times =
                moe_tile_times(cluster.node, moe, rows.begin[e + 1] - rows.begin[e]);
            const int expert = rank * local + rows.expert[r];
            const double remote =
                1 - static_cast<double>(moe.routing->at(expert, rank)) / moe.routing->total(expert);
            const double full = 2.0 * rows.tokens[r] * moe.hidden;
            const double issue = moe.epilogue_apart ? 0 : cluster.node.issue_ns(full / n2);
            ones_ns.push_back(ones_ns.back() + n1 * times.linear1_ns);
            twos_ns.push_back(twos_ns.back() + n2 * (times.linear2_ns + issue));
            bytes.push_back(bytes.back() + full * remote);
            tile1_ns = std::max(tile1_ns, times.linear1_ns);
        }
    }
    std::size_t count() const { return rows.tokens.size(); }
    double load(double rate) const {
        return std::max(ones_ns.back() + twos_ns.back(), bytes.back() / rate);
    }
};

std::vector<Phase> phases_of(const RowSums& sums, const plan::MoeOrder& order, int sms) {
    std::vector<Phase> phases;
    // A run of tiles occupies all SMs, but is never over before one tile is.
    const auto add = [&](const char* name, double sm_ns, double bytes, double least_ns) {
        if (sm_ns > 0) phases.push_back({name, std::max(sm_ns / sms, least_ns), bytes});
    };
    const auto span = [](const std::vector<double>& sums_of, double from, double to) {
        const auto at = [&](double row) {
            const double inside = std::clamp(row, 0.0, static_cast<double>(sums_of.size() - 1));
            const auto low = static_cast<std::size_t>(inside);
            const double next = low + 1 < sums_of.size() ? sums_of[low + 1] : sums_of[low];
            return sums_of[low] + (inside - static_cast<double>(low)) * (next - sums_of[low]);
        };
        return at(to) - at(from);
    };
    if (order.kind == MoeOrderKind::kWave) {
        const int experts = static_cast<int>(sums.rows.begin.size()) - 1;
        const int size = order.wave > 0 ? order.wave : experts;
        for (int e = 0; e < experts; e += size) {
            const double from = sums.rows.begin[static_cast<std::size_t>(e)];
            const double to =
                sums.rows.begin[static_cast<std::size_t>(std::min(e + size, experts))];
            add("Linear-1", span(sums.ones_ns, from, to), 0, sums.tile1_ns);
            add("Linear-2", span(sums.twos_ns, from, to), span(sums.bytes, from, to), 0);
        }
        return phases;
    }
    const auto rows = static_cast<double>(sums.count());
    double head = order.lead, ones = 1, twos = 1;  // rows of Linear-1 before the first Linear-2
    if (order.kind != MoeOrderKind::kLead) {
        plan::MoeGrid grid;
        grid.experts = static_cast<std::int32_t>(sums.rows.begin.size()) - 1;
        grid.n1 = sums.n1;
        grid.n2 = sums.n2;
        grid.row_begin = sums.rows.begin.data();
        const plan::MoeTurns turns = plan::turns_of(grid, order);
        head = static_cast<double>(turns.warmup) / sums.n1;
        ones = static_cast<double>(turns.ones) / sums.n1;  // rows per turn
        twos = static_cast<double>(turns.twos) / sums.n2;
    }
    head = std::min(head, rows);
    const double mixed =
        std::min(rows, (rows - head) / ones * twos);  // rows of Linear-2 in the turns
    add("Linear-1", span(sums.ones_ns, 0, head), 0, sums.tile1_ns);
    add("mixed", span(sums.ones_ns, head, rows) + span(sums.twos_ns, 0, mixed),
        span(sums.bytes, 0, mixed), 0);
    add("Linear-2", span(sums.twos_ns, mixed, rows), span(sums.bytes, mixed, rows), 0);
    return phases;
}

std::vector<plan::MoeOrder> moe_orders(const Scenario& scenario) {
    const Moe& moe = *scenario.moe;
    const int sms = scenario.cluster.node.sms;
    const int experts = moe.experts / scenario.cluster.gpus;
    std::vector<plan::MoeOrder> orders{moe.order};
    for (const int wave : {0, 1, 2, 4, 8, 16}) {
        if (wave < experts) orders.push_back({MoeOrderKind::kWave, wave, 0, 0});
    }
    orders.push_back({MoeOrderKind::kAlternate, 0, 0, 2 * sms});
    orders.push_back({MoeOrderKind::kRatio, 0, 0, 2 * sms});
    // The least lead that keeps SMs from waiting for each other, and more of it.
    const int least = 1 + 2 * sms / moe.columns1();
    for (const int factor : {1, 2, 4})
        orders.push_back({MoeOrderKind::kLead, 0, factor * least, 0});
    return orders;
}

/// The GPU with the most to do or to send decides when the layer is over.
RowSums heaviest_of(const Cluster& cluster, const Moe& moe) {
    const double rate = cluster.node.link_rate * cluster.node.sms;
    std::optional<RowSums> heaviest;
    for (int rank = 0; rank < cluster.gpus; ++rank) {
        RowSums sums(cluster, moe, rank);
        if (!heaviest || sums.load(rate) > heaviest->load(rate)) heaviest = std::move(sums);
    }
    return std::move(*heaviest);
}

/// How many SMs may carry stores instead of computing: each drains no faster than one SM can, so
/// that few cannot fill the link, and each that is not needed for that only computes less. What the
/// scenario has comes first.
std::vector<int> splits_of(const Scenario& scenario) {
    const int own = scenario.moe ? scenario.moe->copying_sms : scenario.ulysses->copying_sms;
    std::vector<int> splits;
    for (const int copying : {own, 4, 8, 16, 32}) {
        if (copying < 1 || 2 * copying >= scenario.cluster.node.sms) continue;
        if (copying != own || splits.empty()) splits.push_back(copying);
    }
    return splits;
}

/// Puts the scenario's own split, where it has one, before the plainer orders.
std::vector<Option> own_first(std::vector<Option> options, int copying) {
    for (std::size_t i = 0; copying > 0 && i < options.size(); ++i) {
        const Scenario& s = options[i].scenario;
        if ((s.moe ? s.moe->copying_sms : s.ulysses->copying_sms) != copying) continue;
        std::rotate(options.begin(), options.begin() + static_cast<std::ptrdiff_t>(i),
                    options.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        break;
    }
    for (std::size_t i = 0; i < options.size(); ++i) options[i].candidate.tag = static_cast<int>(i);
    return options;
}

/// The scenario with `copying` of its SMs as carriers. `phases` are those of the other SMs.
Option split_option(const Scenario& scenario, int copying, std::vector<Phase> phases,
                    std::size_t tag) {
    Option option{{fmt::format("{} SMs copy", copying), std::move(phases), static_cast<int>(tag)},
                  scenario};
    option.candidate.rate = copying * scenario.cluster.node.producer_rate;
    option.candidate.buffered = true;
    (scenario.moe ? option.scenario.moe->copying_sms : option.scenario.ulysses->copying_sms) =
        copying;
    return option;
}

std::vector<Option> moe_options(const Scenario& scenario) {
    const RowSums heaviest = heaviest_of(scenario.cluster, *scenario.moe);
    std::vector<Option> options;
    for (const plan::MoeOrder& order : moe_orders(scenario)) {
        const std::string name = order_name(order);
        const bool known = std::any_of(options.begin(), options.end(),
                                       [&](const Option& o) { return o.candidate.name == name; });
        if (known) continue;
        Option option{{name, phases_of(heaviest, order, scenario.cluster.node.sms),
                       static_cast<int>(options.size())},
                      scenario};
        option.scenario.moe->order = order;
        option.scenario.moe->copying_sms = 0;
        options.push_back(std::move(option));
    }
    for (const int copying : splits_of(scenario)) {
        const int left = scenario.cluster.node.sms - copying;
        Cluster part = scenario.cluster;
        part.node = computing_part(part.node, left);
        options.push_back(
            split_option(scenario, copying,
                         phases_of(heaviest_of(part, *scenario.moe), scenario.moe->order, left),
                         options.size()));
    }
    return options;
}

/// A burst per round of tiles, with the rest of the next tile as its gap.
std::vector<Phase> rounds_of(const Scenario& scenario, int rank) {
    const auto program = scenario.programs()(rank);
    std::vector<Phase> phases;
    std::vector<Step> steps(static_cast<std::size_t>(program->producers()));
    std::vector<bool> live(steps.size(), true);
    double free = 0;
    for (bool any = true; any;) {
        any = false;
        Phase burst{"output", 0, 0};
        double compute = 0, next_free = 0;
        for (std::size_t p = 0; p < steps.size(); ++p) {
            Step& step = steps[p];
            if (!live[p] || !(live[p] = program->claim(static_cast<int>(p), step))) continue;
            any = true;
            compute = std::max(compute, step.compute_ns);
            next_free = std::max(next_free, step.free_ns);
            double issue = step.local_ns;
            for (int i = 0; i < step.parts; ++i) {
                burst.bytes += step.part[i].bytes;
                issue += step.part[i].issue_ns;
            }
            burst.compute_ns = std::max(burst.compute_ns, issue);
        }
        if (!any) break;
        phases.push_back({"tiles", std::max(0.0, compute - free), 0});
        // What may run before the stores are accepted belongs to the burst, not to the gap.
        burst.compute_ns = std::max(burst.compute_ns, next_free);
        free = burst.compute_ns;
        phases.push_back(burst);
    }
    return phases;
}

std::vector<Option> ulysses_options(const Scenario& scenario) {
    std::vector<Option> options;
    const auto add = [&](const std::string& name, const Ulysses& shape) {
        const bool known = std::any_of(options.begin(), options.end(),
                                       [&](const Option& o) { return o.candidate.name == name; });
        if (known) return;
        Option option{{name, {}, static_cast<int>(options.size())}, scenario};
        option.scenario.ulysses = shape;
        option.candidate.phases = rounds_of(option.scenario, 0);
        options.push_back(std::move(option));
    };
    const auto name_of = [](const Ulysses& shape) -> std::string {
        static constexpr const char* kOrders[] = {"head-major", "interleaved", "rotated",
                                                  "remote first", "longest first"};
        static constexpr const char* kFirst[] = {"rank 0's chunk first", "own chunk first",
                                                 "peer's chunk first"};
        if (shape.layout == Layout::kPeers) return kOrders[static_cast<int>(shape.order)];
        const char* layout = shape.layout == Layout::kPadded  ? "padded, "
                             : shape.layout == Layout::kPages ? "pages in turn, "
                                                              : "batched, ";
        return layout + std::string(kFirst[static_cast<int>(shape.first)]);
    };
    const auto add_splits = [&] {
        for (const int copying : splits_of(scenario)) {
            Scenario part = scenario;
            const int left = scenario.cluster.node.sms - copying;
            part.cluster.node = computing_part(part.cluster.node, left);
            part.ulysses->copying_sms = 0;
            part.ulysses->attention_ns =
                scenario.ulysses->tile_ns(scenario.cluster) * scenario.ulysses->waves(part.cluster);
            options.push_back(split_option(scenario, copying, rounds_of(part, 0), options.size()));
        }
    };
    Ulysses shape = *scenario.ulysses;
    shape.copying_sms = 0;
    add(name_of(shape), shape);
    if (shape.layout == Layout::kPeers) {
        for (const auto order : {plan::TileOrder::kHeadMajor, plan::TileOrder::kInterleaved,
                                 plan::TileOrder::kRotated, plan::TileOrder::kRemoteFirst}) {
            shape.order = order;
            add(name_of(shape), shape);
        }
        add_splits();
        return options;
    }
    for (const Layout layout : {Layout::kPadded, Layout::kPages, Layout::kBatched}) {
        for (const FirstChunk first : {FirstChunk::kOwn, FirstChunk::kPeer}) {
            shape.layout = layout;
            shape.first = first;
            add(name_of(shape), shape);
        }
    }
    add_splits();
    return options;
}

}  // namespace

std::vector<Option> options_of(const Scenario& scenario) {
    if (scenario.moe) return own_first(moe_options(scenario), scenario.moe->copying_sms);
    if (scenario.ulysses) {
        return own_first(ulysses_options(scenario), scenario.ulysses->copying_sms);
    }
    throw Error(ErrorKind::kBadInput,
                "/trace: expected ulysses or moe; a recorded trace has one order only");
}

plan::StoreLimits limits_of(const Node& node) {
    plan::StoreLimits limits;
    limits.rate = node.link_rate;
    limits.room = node.room();
    limits.tail_ns = node.ack_ns;
    return limits;
}

plan::Advice advise(const std::vector<Option>& options, int threads) {
    std::vector<plan::Candidate> candidates;
    for (const Option& option : options) candidates.push_back(option.candidate);
    RunOptions run_options;
    run_options.threads = threads;
    return plan::advise(candidates, 0, limits_of(options.front().scenario.cluster.node),
                        [&](const plan::Candidate& candidate) {
                            const Scenario& s =
                                options[static_cast<std::size_t>(candidate.tag)].scenario;
                            const double fixed = s.moe ? s.moe->fixed_ns : 0;
                            return run(s.cluster, s.programs(), run_options).total_ns + fixed;
                        });
}

}  // namespace xstage::sim
