#include "xstage/sparse/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "xstage/error.hpp"

namespace xstage::sparse {

namespace {

struct Search {
    std::vector<double> loads;  ///< descending
    std::size_t ranks, per_rank;
    double bound = 0;  ///< no placement has less
    std::int64_t nodes_left = 0;

    std::vector<std::int32_t> current, best;
    std::vector<double> sum;
    std::vector<std::size_t> count;
    double least = INFINITY;

    static double largest(const std::vector<double>& sum) {
        return *std::max_element(sum.begin(), sum.end());
    }

    void greedy() {
        sum.assign(ranks, 0);
        count.assign(ranks, 0);
        best.assign(loads.size(), 0);
        for (std::size_t i = 0; i < loads.size(); ++i) {
            std::size_t to = ranks;
            for (std::size_t r = 0; r < ranks; ++r) {
                if (count[r] < per_rank && (to == ranks || sum[r] < sum[to])) to = r;
            }
            best[i] = static_cast<std::int32_t>(to);
            sum[to] += loads[i];
            ++count[to];
        }
        while (exchange()) {
        }
        least = largest(sum);
    }

    /// One exchange between the fullest rank and another that lowers the larger of the two.
    bool exchange() {
        const auto full =
            static_cast<std::int32_t>(std::max_element(sum.begin(), sum.end()) - sum.begin());
        double gain = 1e-12 * (1 + sum[static_cast<std::size_t>(full)]);
        std::size_t from = loads.size();
        std::size_t to = loads.size();
        for (std::size_t i = 0; i < loads.size(); ++i) {
            if (best[i] != full) continue;
            for (std::size_t j = 0; j < loads.size(); ++j) {
                if (best[j] == full) continue;
                const double moved = loads[i] - loads[j];
                const double before = sum[static_cast<std::size_t>(full)];
                const double after =
                    std::max(before - moved, sum[static_cast<std::size_t>(best[j])] + moved);
                if (moved > 0 && before - after > gain) {
                    gain = before - after;
                    from = i;
                    to = j;
                }
            }
        }
        if (from == loads.size()) return false;
        const double moved = loads[from] - loads[to];
        sum[static_cast<std::size_t>(full)] -= moved;
        sum[static_cast<std::size_t>(best[to])] += moved;
        std::swap(best[from], best[to]);
        return true;
    }

    /// Places head i and those behind it. Ranks that are alike so far are tried once.
    bool place(std::size_t i) {
        if (least <= bound * (1 + 1e-12)) return true;
        if (nodes_left-- <= 0) return false;
        if (i == loads.size()) {
            least = largest(sum);
            best = current;
            return true;
        }
        std::vector<std::size_t> order(ranks);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return sum[a] < sum[b]; });
        for (std::size_t n = 0; n < ranks; ++n) {
            const std::size_t r = order[n];
            if (count[r] == per_rank || sum[r] + loads[i] >= least) continue;
            if (n > 0 && sum[order[n - 1]] == sum[r] && count[order[n - 1]] == count[r]) continue;
            const double before = sum[r];
            sum[r] += loads[i];
            ++count[r];
            current[i] = static_cast<std::int32_t>(r);
            const bool finished = place(i + 1);
            sum[r] = before;
            --count[r];
            if (!finished) return false;
        }
        return true;
    }
};

}  // namespace

Placement place_heads(std::span<const double> loads, int ranks, std::int64_t search_nodes) {
    if (ranks < 1 || loads.empty() || loads.size() % static_cast<std::size_t>(ranks) != 0) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("placement: {} heads on {} ranks", loads.size(), ranks));
    }
    for (const double load : loads) {
        if (!(load >= 0) || !std::isfinite(load)) {
            throw Error(ErrorKind::kBadInput, fmt::format("placement: a load of {}", load));
        }
    }
    std::vector<std::size_t> order(loads.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return loads[a] > loads[b]; });
    Search search;
    search.ranks = static_cast<std::size_t>(ranks);
    search.per_rank = loads.size() / search.ranks;
    for (const std::size_t i : order) search.loads.push_back(loads[i]);
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / ranks;
    // The largest head shares its rank with the smallest ones at best.
    double with_largest = search.loads[0];
    for (std::size_t i = 1; i < search.per_rank; ++i) {
        with_largest += search.loads[search.loads.size() - i];
    }
    search.bound = std::max(mean, with_largest);
    search.greedy();
    search.current = search.best;
    search.sum.assign(search.ranks, 0);
    search.count.assign(search.ranks, 0);
    search.nodes_left = search_nodes;
    const bool complete = search.place(0);

    Placement placement;
    placement.rank_of.resize(loads.size());
    for (std::size_t i = 0; i < order.size(); ++i) placement.rank_of[order[i]] = search.best[i];
    placement.largest = search.least;
    placement.mean = mean;
    placement.bound = complete ? search.least : std::min(search.bound, search.least);
    return placement;
}

}  // namespace xstage::sparse
