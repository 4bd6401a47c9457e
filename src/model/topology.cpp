#include "xstage/topology.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace xstage::model {
namespace {

using Sizes = std::vector<int>;

int total(const Sizes& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), 0);
}

// The group whose next SM is taken: one SM of each group comes first, then one SM of every further
// pair, group by group, then the second SMs of the pairs.
std::size_t next_group(const Sizes& size, const Sizes& used) {
    const auto first = [&](auto&& fits) {
        std::size_t g = 0;
        while (g < size.size() && !fits(g)) ++g;
        return g;
    };
    const auto pairs = [&](std::size_t g) { return (size[g] + 1) / 2; };
    std::size_t g = first([&](std::size_t i) { return used[i] == 0 && size[i] > 0; });
    if (g == size.size()) g = first([&](std::size_t i) { return used[i] < pairs(i); });
    if (g < size.size()) return g;
    std::size_t best = size.size();
    for (std::size_t i = 0; i < size.size(); ++i) {
        if (used[i] >= size[i]) continue;
        if (best == size.size() || used[i] - pairs(i) < used[best] - pairs(best)) best = i;
    }
    return best;
}

// Not std::shuffle: a seed has to mean the same order with every standard library.
template <class T>
void shuffle(std::vector<T>& values, std::mt19937& random) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
}

std::vector<std::size_t> shuffled_indices(std::size_t n, std::mt19937& random) {
    std::vector<std::size_t> out(n);
    std::iota(out.begin(), out.end(), std::size_t{0});
    shuffle(out, random);
    return out;
}

// Cluster after cluster by `rank` of its CTAs and its SMs left, highest first.
template <class Rank>
std::vector<int> order_by(const Topology& topology, Rank&& rank) {
    std::vector<Sizes> used;
    Sizes free, base;
    int groups = 0;
    for (const Sizes& cluster : topology.clusters) {
        used.emplace_back(cluster.size(), 0);
        free.push_back(total(cluster)), base.push_back(groups);
        groups += static_cast<int>(cluster.size());
    }
    std::vector<int> order;
    for (int left = total(free); left > 0; --left) {
        const auto value = [&](std::size_t c) {
            return free[c] == 0 ? std::numeric_limits<int>::min() : rank(total(used[c]), free[c]);
        };
        std::size_t c = 0;
        for (std::size_t other = 1; other < used.size(); ++other) {
            if (value(other) > value(c)) c = other;
        }
        const std::size_t g = next_group(topology.clusters[c], used[c]);
        --free[c], ++used[c][g];
        order.push_back(base[c] + static_cast<int>(g));
    }
    return order;
}

}  // namespace

std::vector<int> even_order(const Topology& topology) {
    return order_by(topology, [](int used, int) { return -used; });
}

std::vector<int> most_free_order(const Topology& topology) {
    return order_by(topology, [](int, int free) { return free; });
}

std::vector<int> tied_order(const Topology& topology, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<int> first_group;
    int groups = 0;
    for (const Sizes& cluster : topology.clusters) {
        first_group.push_back(groups), groups += static_cast<int>(cluster.size());
    }
    // The same GPU with its clusters and groups in another sequence; `name` leads back.
    Topology shuffled;
    std::vector<int> name;
    for (const std::size_t c : shuffled_indices(topology.clusters.size(), random)) {
        Sizes& cluster = shuffled.clusters.emplace_back();
        for (const std::size_t g : shuffled_indices(topology.clusters[c].size(), random)) {
            cluster.push_back(topology.clusters[c][g]);
            name.push_back(first_group[c] + static_cast<int>(g));
        }
    }
    std::vector<int> order = most_free_order(shuffled);
    for (int& group : order) group = name[static_cast<std::size_t>(group)];
    return order;
}

std::vector<int> scattered_order(const Topology& topology, unsigned seed) {
    std::vector<int> order;
    int group = 0;
    for (const Sizes& cluster : topology.clusters) {
        for (const int sms : cluster)
            order.insert(order.end(), static_cast<std::size_t>(sms), group++);
    }
    std::mt19937 random(seed);
    shuffle(order, random);
    return order;
}

std::vector<int> equal_halves(const Topology& topology) {
    constexpr std::size_t kMostClusters = 16;  // every split of more would take too long
    Sizes size;
    for (const Sizes& cluster : topology.clusters) size.push_back(total(cluster));
    std::vector<int> half(size.size(), 0);
    if (size.size() > kMostClusters) return half;
    int least = std::numeric_limits<int>::max();
    unsigned best = 0;
    for (unsigned second = 0; second < 1U << size.size(); second += 2) {
        int lead = 0;
        for (std::size_t c = 0; c < size.size(); ++c) {
            lead += (second >> c & 1U) != 0 ? -size[c] : size[c];
        }
        if (std::abs(lead) < least) least = std::abs(lead), best = second;
    }
    for (std::size_t c = 0; c < size.size(); ++c) half[c] = static_cast<int>(best >> c & 1U);
    return half;
}

std::vector<std::vector<int>> place(const Topology& topology, int producers) {
    if (topology.clusters.empty()) return {};
    const std::vector<int> order = topology.order.empty() ? even_order(topology) : topology.order;
    std::vector<int> used;
    for (const int group : order) {
        if (producers-- <= 0) break;
        if (static_cast<std::size_t>(group) >= used.size())
            used.resize(static_cast<std::size_t>(group) + 1);
        ++used[static_cast<std::size_t>(group)];
    }
    std::vector<Sizes> out;
    std::size_t g = 0;
    for (const Sizes& cluster : topology.clusters) {
        Sizes& groups = out.emplace_back();
        for (std::size_t i = 0; i < cluster.size(); ++i, ++g) {
            groups.push_back(g < used.size() ? used[g] : 0);
        }
    }
    return out;
}

}  // namespace xstage::model
