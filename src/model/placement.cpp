#include "model/placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace xstage::model {
namespace {

using Order = std::vector<int>;
using Rows = std::vector<Case>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr std::size_t kEach = 30;    // rows of each SM count that are enough to tell
constexpr unsigned kDraws = 30;      // of each kind of start
constexpr std::size_t kTries = 3;    // starts that are improved
constexpr int kPasses = 8;           // swaps on one start
constexpr double kLeastGain = 0.01;  // of the misfit; less is noise
constexpr double kMostError = 0.5;   // of one time; a row that fails outright tells no more

// Bursts beyond the rooms, of a part of the SMs, by SM count.
std::map<std::size_t, Rows> partial_grids(const std::vector<Case>& cases, int sms) {
    constexpr double kShortest = 40e3, kLongest = 1.1e6;  // bytes
    std::map<std::size_t, Rows> all, out;
    for (const Case& c : cases) {
        if (c.load.producers > 2 && c.load.producers < sms && c.mode != BurstMode::kPeriodic &&
            c.bytes.value() >= kShortest && c.bytes.value() <= kLongest) {
            all[static_cast<std::size_t>(c.load.producers)].push_back(c);
        }
    }
    for (const auto& [producers, rows] : all) {
        const std::size_t every = (rows.size() + kEach - 1) / kEach;
        for (std::size_t i = 0; i < rows.size(); i += every) out[producers].push_back(rows[i]);
    }
    return out;
}

// Stops early once it exceeds `limit`.
double misfit(const Profile& profile, const Rows& rows, double limit) {
    double cost = 0;
    Simulator simulate(profile);
    for (const Case& c : rows) {
        const Observed predicted = simulate(c);
        for (int i = 0; i < kTotal; ++i) {
            if (c.weight[i] <= 0) continue;
            cost += std::min(kMostError, std::abs(std::log(predicted[i] / c.observed[i])));
        }
        if (cost >= limit) break;
    }
    return cost;
}

// The first `fixed` CTAs as in `order`, the others as in `other`.
Order spliced(const Order& order, std::size_t fixed, const Order& other) {
    Order out(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(fixed));
    std::map<int, int> placed;
    for (const int group : out) ++placed[group];
    for (const int group : other) {
        if (placed[group] > 0) {
            --placed[group];
        } else {
            out.push_back(group);
        }
    }
    return out;
}

// Swaps CTAs of a grid of `sms`, but for the first `fixed`, for later ones while that explains the
// rows better. Returns the misfit.
double improve(const Rows& rows, std::size_t fixed, std::size_t sms, Profile& profile) {
    Topology& topology = profile.topology;
    std::vector<std::pair<int, int>> group;  // half and SMs
    for (std::size_t c = 0; c < topology.clusters.size(); ++c) {
        for (const int n : topology.clusters[c]) group.emplace_back(topology.halves[c], n);
    }
    double least = misfit(profile, rows, kNoLimit);
    for (int pass = 0; pass < kPasses; ++pass) {
        std::vector<int> used(group.size());
        for (std::size_t i = 0; i < sms; ++i) ++used[static_cast<std::size_t>(topology.order[i])];
        using Kind = std::tuple<int, int, int>;
        const auto kind = [&](std::size_t i) {
            const auto g = static_cast<std::size_t>(topology.order[i]);
            return Kind{group[g].first, group[g].second, used[g]};
        };
        // Two swaps between groups of the same kinds make the same grid.
        std::set<std::pair<Kind, Kind>> tried;
        const Order base = topology.order;
        Order best;
        double lowest = least * (1 - kLeastGain);
        for (std::size_t i = fixed; i < sms; ++i) {
            for (std::size_t j = sms; j < base.size(); ++j) {
                if (base[i] == base[j] || !tried.insert({kind(i), kind(j)}).second) continue;
                std::swap(topology.order[i], topology.order[j]);
                const double cost = misfit(profile, rows, lowest);
                if (cost < lowest) lowest = cost, best = topology.order;
                topology.order = base;
            }
        }
        if (best.empty()) break;
        topology.order = best, least = lowest;
    }
    return least;
}

// The orders that hardware or chance may produce.
std::vector<Order> candidates(const Topology& topology) {
    std::vector<Order> out{even_order(topology), most_free_order(topology)};
    for (unsigned seed = 1; seed <= kDraws; ++seed) out.push_back(tied_order(topology, seed));
    for (unsigned seed = 1; seed <= kDraws; ++seed) out.push_back(scattered_order(topology, seed));
    return out;
}

// The grid of `sms` CTAs, of which the first `fixed` are settled.
Order settle(const Rows& rows, std::size_t fixed, std::size_t sms, const std::vector<Order>& others,
             Profile profile) {
    std::vector<std::pair<double, Order>> starts;
    const Order before = profile.topology.order;
    const auto consider = [&](Order order) {
        profile.topology.order = std::move(order);
        const double limit = starts.size() < kTries ? kNoLimit : starts.back().first;
        starts.emplace_back(misfit(profile, rows, limit), profile.topology.order);
        std::sort(starts.begin(), starts.end());
        if (starts.size() > kTries) starts.pop_back();
    };
    consider(before);
    for (const Order& other : others) consider(spliced(before, fixed, other));
    Order best;
    double least = kNoLimit;
    for (const auto& [cost, order] : starts) {
        profile.topology.order = order;
        const double reached = improve(rows, fixed, sms, profile);
        if (reached < least) least = reached, best = profile.topology.order;
    }
    return best;
}

}  // namespace

bool find_placement(const std::vector<Case>& cases, Profile& profile) {
    Topology& topology = profile.topology;
    if (topology.clusters.empty() || topology.halves.empty()) return false;
    const std::map<std::size_t, Rows> grids = partial_grids(cases, topology.sms);
    if (grids.empty()) return false;
    const Order before = topology.order;
    const std::vector<Order> others = candidates(topology);
    double least = kNoLimit;
    Order best;
    for (const Order& order : others) {
        topology.order = order;
        double cost = 0;
        for (const auto& [sms, rows] : grids) cost += misfit(profile, rows, least - cost);
        if (cost < least) least = cost, best = order;
    }
    topology.order = best;
    // From small grids to large ones: the CTAs of a small grid are the first of every larger one.
    std::size_t fixed = 0;
    for (const auto& [sms, rows] : grids) {
        topology.order = settle(rows, fixed, sms, others, profile);
        fixed = sms;
    }
    return topology.order != before;
}

}  // namespace xstage::model
