#include "sim/node.hpp"

#include <numeric>

namespace xstage::sim {

std::vector<int> Node::group_of(int producers) const {
    if (groups.empty()) return std::vector<int>(static_cast<std::size_t>(producers), 0);
    std::vector<int> out, used(groups.size(), 0);
    const int size = std::accumulate(groups.begin(), groups.end(), 0);
    while (static_cast<int>(out.size()) < producers) {
        // More producers than SMs (several CTAs per SM) begin another round over the groups.
        if (static_cast<int>(out.size()) % size == 0) used.assign(groups.size(), 0);
        for (std::size_t g = 0; g < groups.size(); ++g) {
            if (used[g] < groups[g] && static_cast<int>(out.size()) < producers) {
                ++used[g];
                out.push_back(static_cast<int>(g));
            }
        }
    }
    return out;
}

double Node::room() const {
    if (groups.empty()) {
        return sms * private_room + std::min(shared_room, sms * shared_cap);
    }
    double room = 0;
    for (const int size : groups) {
        room += size * private_room + std::min(shared_room, size * shared_cap);
    }
    return room;
}

}  // namespace xstage::sim
