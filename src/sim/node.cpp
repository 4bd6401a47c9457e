#include "sim/node.hpp"

#include <cmath>
#include <numeric>

namespace xstage::sim {

std::vector<int> Node::group_of(int producers) const {
    if (groups.empty()) return std::vector<int>(static_cast<std::size_t>(producers), 0);
    if (producers < static_cast<int>(order.size()) && producers < sms) {
        return {order.begin(), order.begin() + producers};
    }
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

double Node::weight(const std::vector<double>& luck, int place, long turn, double bytes) const {
    if (favour == 0 && disfavour == 0) return 1;
    const auto members = static_cast<long>(luck.size());
    const long shift = turn % 2 * (members / 2) + turn / 2;
    const double dealt = luck[static_cast<std::size_t>((place + shift) % members)];
    const double quantile = dealt + keep * (luck[static_cast<std::size_t>(place)] - dealt);
    const double within = turn_bytes > 0 && bytes > turn_bytes ? turn_bytes / bytes : 1;
    // A lone member has no rival to be served before.
    const double rivals = 1 - 1 / static_cast<double>(members);
    const double spread = quantile > 0 ? favour : disfavour;
    return std::exp(quantile * rivals * spread * (within + (1 - within) * lasting));
}

std::vector<double> luck_of(int members) {
    std::vector<double> out(static_cast<std::size_t>(members));
    for (int i = 0; i < members; ++i) {
        const double part = (i + 0.5) / members;
        double low = -8, high = 8;
        for (int step = 0; step < 60; ++step) {
            const double middle = (low + high) / 2;
            (std::erfc(-middle / std::sqrt(2.0)) / 2 < part ? low : high) = middle;
        }
        out[static_cast<std::size_t>(i)] = low;
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
