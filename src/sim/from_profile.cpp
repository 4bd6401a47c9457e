#include <algorithm>

#include "sim/node.hpp"
#include "xstage/profile.hpp"

namespace xstage::sim {

Node node_from_profile(const model::Profile& profile, const std::string& path, int warps) {
    const model::StorePath& store = profile.path(path);
    const model::Network& network = profile.network;
    const double clock = profile.clock.value();
    Node node;
    node.name = profile.node;
    node.sms = profile.topology.sms;
    if (profile.hierarchical) {
        for (const std::vector<int>& cluster : profile.topology.clusters) {
            node.groups.insert(node.groups.end(), cluster.begin(), cluster.end());
        }
    }
    node.link_rate = network.drain.value();
    node.producer_rate = network.egress.value() * clock;
    node.private_room = store.room.value();
    node.shared_room = network.group_room.value();
    node.shared_cap = network.producer_room.value();
    // The profile's weights hold for a turn and fade to a lasting part; the simulator's hold for a
    // burst: their mean over one of 32 KB.
    const double turn = std::min(1.0, network.turn.value() / 32768);
    node.arbitration_spread =
        (network.favour + network.disfavour) / 2 * (turn + (1 - turn) * network.lasting);
    node.issue_base_ns = (store.start + store.cold).value() / clock;
    double accept = store.accept.value();
    if (store.per_warp && store.per_instruction.value() > 0) {
        accept =
            std::min(accept, warps * store.instruction.value() / store.per_instruction.value());
    }
    node.issue_rate = accept * clock;
    if (profile.visibility.echo) node.visible_ns = profile.visibility.echo->value() / 2;
    return node;
}

}  // namespace xstage::sim
