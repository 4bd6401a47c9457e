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
constexpr int kMany = 2;  // bursts of a sequence, as far as its model depends on them
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
    const double rivals = issuers(path, load) - 1;
    const Cycles each = path.per_instruction + path.per_rival * rivals;
    return each * (bytes / path.instruction / issuers(path, load));
}

bool power_of_two(double x) {
    const double exponent = std::log2(x);
    return std::abs(exponent - std::round(exponent)) < 1e-9;
}

// A group's classes: its SMs split by the turn that they begin with.
void add_group(FluidModel& model, const Network& network, int sms, int cluster, bool turns) {
    const int group = static_cast<int>(model.groups.size());
    model.groups.push_back({cluster, 1});
    const Bytes shared = std::min(network.producer_room, network.group_room / sms);
    const int parts = turns && sms > 2 ? kTurns : 1;
    const int base = static_cast<int>(model.turns.size());
    // Arbitration can favour an SM only over others of its group.
    const double rivals = 1 - 1.0 / sms;
    const auto& quantile = kTurnQuantile[parts - 1];
    for (int i = 0; i < parts; ++i) {
        // Every class has its own set of turns: a part of its luck it keeps.
        const int own = base + i * parts;
        model.classes.push_back(
            {group, static_cast<double>(sms) / parts, shared.value(), 1, own + i});
        for (int turn = 0; turn < parts; ++turn) {
            const double luck = quantile[turn] + network.keep * (quantile[i] - quantile[turn]);
            const double spread = luck > 0 ? network.favour : network.disfavour;
            model.turns.push_back(std::exp(luck * rivals * spread));
            model.after.push_back(std::pow(model.turns.back(), network.lasting));
            // From the favoured turn to the disfavoured one and up again: who ended early, and so
            // begins early, waits longest in the next burst.
            model.next_turn.push_back(own + (turn + parts - 1) % parts);
        }
    }
}

FluidGap gap_of(GapFrom from) {
    return from == GapFrom::kAll    ? FluidGap::kAll
           : from == GapFrom::kWarp ? FluidGap::kIssuer
                                    : FluidGap::kProducer;
}

// All but what the path and the clock decide; the rooms are the network's part of them.
FluidModel producers_model(const Network& network, const Topology& topology, int producers) {
    FluidModel model;
    model.egress = network.egress.value();
    model.tail = network.tail;
    model.clusters.clear(), model.groups.clear(), model.turns.clear();
    model.after.clear(), model.next_turn.clear();
    const bool halves = !topology.halves.empty();
    std::map<int, std::map<int, int>> sharers;  // halves or clusters: groups by storing SMs
    const auto placed = place(topology, producers);
    for (std::size_t c = 0; c < placed.size(); ++c) {
        auto& groups = sharers[halves ? topology.halves[c] : static_cast<int>(c)];
        for (const int sms : placed[c]) {
            if (sms > 0) ++groups[sms];
        }
    }
    // Those that look alike behave alike, and so do the groups of one.
    std::map<std::pair<double, std::map<int, int>>, int> kinds;
    for (const auto& [sharer, groups] : sharers) {
        const double weight = halves && sharer == 0 ? network.balance : 1;
        if (!groups.empty()) ++kinds[{weight, groups}];
    }
    if (kinds.empty()) kinds[{1.0, {{producers, 1}}}] = 1;
    // One or two SMs of a group have the same luck: without a third there is nothing to turn.
    const bool rivals = std::any_of(kinds.begin(), kinds.end(), [](const auto& kind) {
        return kind.first.second.rbegin()->first > 2;
    });
    const bool turns = network.turn.value() > 0 && rivals;
    model.turn_bytes = turns ? network.turn.value() : 0;
    for (const auto& [kind, count] : kinds) {
        const auto& [weight, groups] = kind;
        const int cluster = static_cast<int>(model.clusters.size());
        model.clusters.push_back({static_cast<double>(count), weight});
        for (const auto& [sms, alike] : groups) {
            add_group(model, network, sms, cluster, turns);
            model.groups.back().count = alike;
        }
    }
    return model;
}

}  // namespace

const FluidModel& FluidModels::of(const StorePath& path, const Load& load, int bursts) {
    auto [at, fresh] = by_producers_.try_emplace(load.producers);
    Shared& shared = at->second;
    FluidModel& model = shared.model;
    if (fresh) {
        model = producers_model(network_, topology_, load.producers);
        for (const ProducerClass& c : model.classes) shared.room.push_back(c.room);
    }
    model.drain = (network_.drain / load.clock).value();
    model.gap_from = gap_of(load.gap_from);
    model.spread = bursts > 1 ? network_.spread : 0;
    model.round_bytes = path.instruction.value() * path.wire * (issuers(path, load) - 1);
    for (std::size_t k = 0; k < shared.room.size(); ++k) {
        model.classes[k].room = path.room.value() + shared.room[k];
    }
    return model;
}

FluidModel fluid_model(const Network& network, const Topology& topology, const StorePath& path,
                       const Load& load) {
    return FluidModels(network, topology).of(path, load, kMany);
}

FluidBurst fluid_burst(const Network& network, const StorePath& path, const Load& load, Bytes bytes,
                       Cycles gap, bool first) {
    const Cycles start = path.start + (first ? path.cold : Cycles{});
    const Cycles apart = one_warp(path, load, bytes);
    const Cycles sm = std::max(apart, together(network, path, bytes * path.wire));
    FluidBurst burst;
    burst.bytes = bytes.value() * path.wire;
    burst.issue = (start + sm).value();
    burst.issue_apart = std::max((start + apart).value(), 1.0);
    burst.gap = (gap + path.between).value();
    burst.cost = path.link_cost;
    const double chunk = bytes.value() / issuers(path, load);
    if (network.stride_cost > 0 && chunk > 0 && !power_of_two(chunk)) {
        const double streams = 512.0 * load.producers * issuers(path, load) / chunk;
        burst.cost *= 1 + network.stride_cost * streams / (streams + network.stride_half);
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
