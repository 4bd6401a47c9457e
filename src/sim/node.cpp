#include "sim/node.hpp"

#include <cmath>
#include <numeric>

namespace xstage::sim {

std::vector<int> Node::group_of(int producers) const {
    if (groups.empty()) return std::vector<int>(static_cast<std::size_t>(producers), 0);
    std::vector<int> out, used(groups.size(), 0);
    const int size = std::accumulate(groups.begin(), groups.end(), 0);
    while (static_cast<int>(out.size()) < producers) {
        // More producers than SMs (several CTAs per SM) begin another round over the groups.
        if (static_cast<int>(out.size()) % size == 0) used.assign(groups.size(), 0);
        // A full grid has neighbours on neighbouring SMs, which share a path; a smaller one is
        // spread.
        const int deal = producers >= size ? 2 : 1;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            for (int i = 0; i < deal && used[g] < groups[g]; ++i) {
                if (static_cast<int>(out.size()) == producers) break;
                ++used[g];
                out.push_back(static_cast<int>(g));
            }
        }
    }
    return out;
}

double Node::weight(int place, int members, long burst) const {
    if (arbitration_spread == 0) return 1;
    const long shift = burst % 2 * (members / 2) + burst / 2;
    const auto at = static_cast<double>((place + shift) % members);
    return std::exp(arbitration_spread * ((2 * at + 1) / members - 1));
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
