#include "model/producers.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "xstage/error.hpp"

namespace xstage::model {
namespace {

// Standard normal quantiles of the middles of one, two and three equal parts, most favoured first.
// Four to eight parts describe the recordings no better; two lose the slowest producer.
constexpr int kTurns = 3;
constexpr double kTurnQuantile[kTurns][kTurns] = {{0}, {0.6745, -0.6745}, {0.9674, 0, -0.9674}};

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

// A group's classes: its SMs split by the turn that they begin with.
void add_group(FluidModel& model, const Network& network, const StorePath& path, int sms,
               int cluster, bool turns) {
    const int group = static_cast<int>(model.groups.size());
    model.groups.push_back({cluster, 1});
    const Bytes shared = std::min(network.producer_room, network.group_room / sms);
    const int parts = turns && sms > 2 ? kTurns : 1;
    const int base = static_cast<int>(model.turns.size());
    // Arbitration can favour an SM only over others of its group.
    const double rivals = 1 - 1.0 / sms;
    for (int i = 0; i < parts; ++i) {
        model.classes.push_back(
            {group, static_cast<double>(sms) / parts, (path.room + shared).value(), 1, base + i});
        const double q = kTurnQuantile[parts - 1][i] * rivals;
        model.turns.push_back(std::exp(q * (q > 0 ? network.favour : network.disfavour)));
        // Who was favoured is not favoured next: a cycle, so that none keeps its luck.
        model.next_turn.push_back(base + (i + 1) % parts);
    }
}

FluidGap gap_of(GapFrom from) {
    return from == GapFrom::kAll    ? FluidGap::kAll
           : from == GapFrom::kWarp ? FluidGap::kIssuer
                                    : FluidGap::kProducer;
}

}  // namespace

FluidModel fluid_model(const Network& network, const Topology& topology, const StorePath& path,
                       const Load& load) {
    FluidModel model;
    model.drain = (network.drain / load.clock).value();
    model.egress = network.egress.value();
    model.gap_from = gap_of(load.gap_from);
    model.round_bytes = path.instruction.value() * (issuers(path, load) - 1);
    const bool turns = network.turn.value() > 0 && load.producers > 1;
    model.turn_bytes = turns ? network.turn.value() : 0;
    model.lasting = network.lasting;
    model.spread = network.spread;
    model.clusters.clear(), model.groups.clear(), model.turns.clear(), model.next_turn.clear();
    // Clusters that look alike behave alike, and so do the groups of one.
    std::map<std::map<int, int>, int> kinds;
    for (const std::vector<int>& cluster : place(topology, load.producers)) {
        std::map<int, int> groups;
        for (const int sms : cluster) {
            if (sms > 0) ++groups[sms];
        }
        if (!groups.empty()) ++kinds[groups];
    }
    if (kinds.empty()) kinds[{{load.producers, 1}}] = 1;
    for (const auto& [groups, count] : kinds) {
        const int cluster = static_cast<int>(model.clusters.size());
        model.clusters.push_back({static_cast<double>(count)});
        for (const auto& [sms, alike] : groups) {
            add_group(model, network, path, sms, cluster, turns);
            model.groups.back().count = alike;
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

const StorePath& Profile::path(const std::string& name) const {
    for (const StorePath& p : paths) {
        if (p.name == name) return p;
    }
    throw Error(ErrorKind::kBadInput, "path: the profile has no path '" + name + "'");
}

}  // namespace xstage::model
