#include "model/producers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "xstage/error.hpp"

namespace xstage::model {
namespace {

// Standard normal quantiles of the middles of three equal parts, most favoured first. Four to
// eight parts describe the recording no better; two lose the slowest producer.
constexpr int kTurns = 3;
constexpr std::array<double, kTurns> kTurnQuantile = {0.9674, 0.0, -0.9674};
// Who was favoured is not favoured next: a cycle through all turns, so that none keeps its luck.
constexpr std::array<int, kTurns> kNextTurn = {1, 2, 0};

struct GroupKind {
    double sms;   // of the group that store
    double part;  // of all producers that are in such groups
};

// How many SMs of a group store is the hardware's choice while some are left idle. Recorded: with
// few producers about two thirds of the groups carry less than the mean and the others more; with
// all of them it is the groups' own sizes. Between the two, linear in the producers.
std::array<GroupKind, 2> group_kinds(const Network& network, const Groups& groups, int producers) {
    const double fill = std::min(1.0, producers / std::max(1.0, static_cast<double>(groups.sms)));
    const double mean = groups.mean_size * fill;
    if (producers == 1 || groups.light_share <= 0 || groups.light_size >= 1) {
        return {{{mean, 1.0}, {mean, 0.0}}};
    }
    const double few = std::max(network.light_when_few, groups.light_share);
    const double light = few + (groups.light_share - few) * fill;
    const double heavy_size = (1 - light * groups.light_size) / (1 - light);
    return {{{groups.light_size * mean, light * groups.light_size},
             {heavy_size * mean, (1 - light) * heavy_size}}};
}

int issuers(const StorePath& path, const Load& load) {
    return path.per_warp ? load.warps : 1;
}

// Issue by the SM as a whole: at its accept rate until its room is full, then at its egress.
Cycles together(const Network& network, const StorePath& path, Bytes bytes) {
    const BytesPerCycle surplus = path.accept - network.egress;
    const Bytes fast = surplus.value() > 0 ? path.room * (path.accept / surplus) : bytes;
    return std::min(bytes, fast) / path.accept + positive_part(bytes - fast) / network.egress;
}

Cycles one_warp(const StorePath& path, const Load& load, Bytes bytes) {
    return path.per_instruction * (bytes / path.instruction / issuers(path, load));
}

bool power_of_two(double x) {
    const double exponent = std::log2(x);
    return std::abs(exponent - std::round(exponent)) < 1e-9;
}

template <class T>
double class_quantile(const FluidModel& model, std::span<const T> values, double fraction) {
    std::array<std::pair<double, double>, 16> order;  // value, count
    std::size_t n = 0;
    double total = 0;
    for (std::size_t k = 0; k < model.classes.size(); ++k) {
        const double count = model.classes[k].count;
        if (count > 0) order[n++] = {static_cast<double>(values[k]), count}, total += count;
    }
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n));
    double below = 0, last_at = 0, last = order[0].first;
    for (std::size_t i = 0; i < n; ++i) {
        const double at = (below + order[i].second / 2) / total;
        if (at >= fraction) {
            if (i == 0) return order[0].first;
            return last + (order[i].first - last) * (fraction - last_at) / (at - last_at);
        }
        below += order[i].second, last_at = at, last = order[i].first;
    }
    return last;
}

}  // namespace

FluidModel fluid_model(const Network& network, const Groups& groups, const StorePath& path,
                       const Load& load) {
    FluidModel model;
    model.drain = (network.drain / load.clock).value();
    model.egress = network.egress.value();
    model.gap_from_all = load.gap_from == GapFrom::kAll;
    const bool turns = network.turn.value() > 0 && load.producers > 1;
    if (turns) {
        model.turns.clear(), model.next_turn.clear();
        model.turn_bytes = network.turn.value();
        model.lasting = network.lasting;
        model.spread = network.spread;
    }
    for (const GroupKind& kind : group_kinds(network, groups, load.producers)) {
        if (kind.part <= 0) continue;
        const double sms = std::max(kind.sms, 1e-9);
        const Bytes shared = std::min(network.producer_room, network.group_room / sms);
        const int parts = turns ? kTurns : 1;
        const int base = static_cast<int>(model.turns.size());
        // Arbitration can favour an SM only over others of its group.
        const double rivals = 1 - 1 / std::max(sms, 1.0);
        for (int i = 0; i < parts; ++i) {
            model.classes.push_back({load.producers * kind.part / parts, 1 / sms,
                                     (path.room + shared).value(), turns ? base + i : 0});
            if (!turns) continue;
            const double q = kTurnQuantile[i] * rivals;
            model.turns.push_back(std::exp(q * (q > 0 ? network.favour : network.disfavour)));
            model.next_turn.push_back(base + kNextTurn[i]);
        }
    }
    return model;
}

FluidBurst fluid_burst(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                       Cycles gap, bool first) {
    const Cycles start = path.start + (first ? path.cold : Cycles{});
    const Cycles apart = one_warp(path, load, bytes);
    const Cycles sm = std::max(apart, together(network, path, bytes));
    FluidBurst burst;
    burst.bytes = bytes.value();
    burst.issue = (start + sm).value();
    burst.issue_apart = std::max((start + apart).value(), 1.0);
    burst.gap = (gap + path.between).value();
    const double chunk = bytes.value() / issuers(path, load);
    if (network.stride_cost > 0 && chunk > 0 && !power_of_two(chunk)) {
        const double streams = 512.0 * load.producers * issuers(path, load) / chunk;
        burst.cost = 1 + network.stride_cost * streams / (streams + network.stride_half);
    }
    return burst;
}

double issue_median(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                    const FluidBurst& burst, const FluidModel& model,
                    std::span<const float> times) {
    // The SM takes its warps in turn: in the last round half of them are done before the last.
    const Cycles round = path.instruction * (issuers(path, load) - 1) / network.egress;
    const Cycles slack =
        positive_part(together(network, path, bytes) - one_warp(path, load, bytes));
    const double lead = std::min(0.5 * round, slack).value();
    const double median = class_quantile(model, times, 0.5);
    // A stalled median warp waits for room, not for its turn in the SM.
    const double waited = (median - burst.issue) / burst.issue;
    return median - lead * std::clamp(1 - 10 * waited, 0.0, 1.0);
}

double quantile(const FluidModel& model, std::span<const float> values, double fraction) {
    return class_quantile(model, values, fraction);
}

double quantile(const FluidModel& model, std::span<const double> values, double fraction) {
    return class_quantile(model, values, fraction);
}

const StorePath& Profile::path(const std::string& name) const {
    for (const StorePath& p : paths) {
        if (p.name == name) return p;
    }
    throw Error(ErrorKind::kBadInput, "path: the profile has no path '" + name + "'");
}

}  // namespace xstage::model
