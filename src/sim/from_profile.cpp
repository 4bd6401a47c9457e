#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "sim/node.hpp"
#include "xstage/profile.hpp"

namespace xstage::sim {
namespace {

/// Groups half by half, as Node wants them. A profile without halves has clusters share the link.
void share_by(const model::Topology& topology, Node& node) {
    std::map<int, std::vector<std::pair<int, int>>> halves;  // of each: group number and its SMs
    int number = 0;
    for (std::size_t c = 0; c < topology.clusters.size(); ++c) {
        const int half = topology.halves.empty() ? static_cast<int>(c) : topology.halves[c];
        for (const int sms : topology.clusters[c]) halves[half].emplace_back(number++, sms);
    }
    std::vector<int> place(static_cast<std::size_t>(number));
    for (const auto& [half, groups] : halves) {
        node.halves.push_back(static_cast<int>(groups.size()));
        for (const auto& [group, sms] : groups) {
            place[static_cast<std::size_t>(group)] = static_cast<int>(node.groups.size());
            node.groups.push_back(sms);
        }
    }
    for (const int group : topology.order) {
        node.order.push_back(place[static_cast<std::size_t>(group)]);
    }
}

}  // namespace

Node node_from_profile(const model::Profile& profile, const std::string& path, int warps) {
    const model::StorePath& store = profile.path(path);
    const model::Network& network = profile.network;
    const double clock = profile.clock.value();
    Node node;
    node.name = profile.node;
    node.sms = profile.topology.sms;
    if (profile.hierarchical) share_by(profile.topology, node);
    // The profile counts bytes on the way, the simulator those that are stored.
    const double wire = store.wire;
    node.link_rate = network.drain.value() / store.link_cost / wire;
    node.producer_rate = network.egress.value() * clock / wire;
    node.private_room = store.room.value() / wire;
    node.shared_room = network.group_room.value() / wire;
    node.shared_cap = network.producer_room.value() / wire;
    node.balance = network.balance;
    node.favour = network.favour;
    node.disfavour = network.disfavour;
    node.keep = network.keep;
    node.lasting = network.lasting;
    node.turn_bytes = network.turn.value() / wire;
    node.issue_base_ns = (store.start + store.cold).value() / clock;
    double accept = store.accept.value() / wire;
    if (store.per_warp && store.per_instruction.value() > 0) {
        accept =
            std::min(accept, warps * store.instruction.value() / store.per_instruction.value());
    }
    node.issue_rate = accept * clock;
    if (profile.visibility.echo) node.visible_ns = profile.visibility.echo->value() / 2;
    return node;
}

}  // namespace xstage::sim
