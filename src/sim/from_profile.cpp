#include <algorithm>
#include <cmath>

#include "sim/node.hpp"
#include "xstage/profile.hpp"

namespace xstage::sim {

Node node_from_profile(const model::Profile& profile, const std::string& path, int warps) {
    const model::StorePath& store = profile.path(path);
    const model::Network& network = profile.network;
    const double clock = profile.clock.value();
    Node node;
    node.name = profile.node;
    node.sms = profile.groups.sms;
    const int groups =
        std::max(1, static_cast<int>(std::lround(node.sms / profile.groups.mean_size)));
    if (profile.hierarchical && groups > 1) {
        // The small groups have their own size, the others share the rest of the SMs.
        const auto small = static_cast<int>(std::lround(profile.groups.light_share * groups));
        const auto size =
            static_cast<int>(std::lround(profile.groups.light_size * profile.groups.mean_size));
        const int large = groups - small;
        int left = node.sms - small * size;
        for (int g = 0; g < large; ++g) {
            node.groups.push_back(left / (large - g));
            left -= node.groups.back();
        }
        node.groups.insert(node.groups.end(), static_cast<std::size_t>(small), size);
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
