#include "model/order.hpp"

#include <algorithm>
#include <numeric>

namespace xstage::model {

IssueOrder::IssueOrder(const FluidModel& model) {
    double all = 0;
    std::size_t k = 0;
    for (std::size_t g = 0; g < model.groups.size(); ++g) {
        first_.push_back(k);
        const FluidGroup& group = model.groups[g];
        const double groups =
            group.count * model.clusters[static_cast<std::size_t>(group.cluster)].count;
        for (; k < model.classes.size() && model.classes[k].group == static_cast<int>(g); ++k) {
            part_.push_back(model.classes[k].count * groups);
            all += part_.back();
        }
        end_.push_back(k);
    }
    for (double& part : part_) part /= all;
}

IssueTimes& IssueOrder::times(std::size_t burst) {
    while (burst - first_open_ >= open_.size()) {
        open_.emplace_back();
        open_.back().missing = part_.size();
    }
    return open_[burst - first_open_];
}

void IssueOrder::done(std::size_t burst, FluidResult& result) {
    IssueTimes& times = open_[burst - first_open_];
    if (--times.missing > 0) return;
    const auto end = times.slowest.begin() + static_cast<std::ptrdiff_t>(part_.size());
    result.slowest[burst] = static_cast<float>(*std::max_element(times.slowest.begin(), end));
    add_segments(times);
    result.median[burst] = static_cast<float>(quantile(0.5));
    while (!open_.empty() && open_.front().missing == 0) open_.pop_front(), ++first_open_;
}

// The classes of a group stand for a continuous spread of luck: a class reaches half-way to its
// neighbours, and as far below as its producers' first issuers are ahead of their last.
void IssueOrder::add_segments(const IssueTimes& times) {
    segments_.clear();
    std::array<std::size_t, kMostClasses> order;
    for (std::size_t g = 0; g < first_.size(); ++g) {
        const auto begin = order.begin(), end = begin + static_cast<std::ptrdiff_t>(end_[g] - first_[g]);
        std::iota(begin, end, first_[g]);
        std::sort(begin, end,
                  [&](std::size_t a, std::size_t b) { return times.slowest[a] < times.slowest[b]; });
        for (auto it = begin; it != end; ++it) {
            const std::size_t k = *it;
            const double t = times.slowest[k];
            const double low = it == begin ? t : (t + times.slowest[*(it - 1)]) / 2;
            const double high = it + 1 == end ? t : (t + times.slowest[*(it + 1)]) / 2;
            const double lag = times.lag[k], together = 1 - times.in_turn[k];
            const double at_once = times.at_once[k], free = times.free[k];
            // Of issuers that begin one by one the first find room, and the others wait as long.
            const double first = at_once * together;
            if (at_once > 0) {
                segments_.push_back({free + ((low - lag) - free) * together,
                                     free + (high - free) * together, part_[k] * at_once});
            }
            (void)first;
            if (at_once < 1) segments_.push_back({low - lag, high, part_[k] * (1 - at_once)});
        }
    }
}

double IssueOrder::quantile(double fraction) {
    double low = segments_[0].low, high = segments_[0].high;
    for (const Segment& s : segments_) low = std::min(low, s.low), high = std::max(high, s.high);
    // The distribution is piecewise linear; halving finds its quantile to a part in a million.
    for (int i = 0; i < 30 && high - low > 1e-6 * high; ++i) {
        const double middle = (low + high) / 2;
        double below = 0;
        for (const Segment& s : segments_) {
            below += middle >= s.high ? s.part
                     : middle > s.low ? s.part * (middle - s.low) / (s.high - s.low)
                                      : 0;
        }
        (below < fraction ? low : high) = middle;
    }
    return high;
}

double IssueOrder::median(std::span<const double> values) {
    segments_.clear();
    for (std::size_t g = 0; g < first_.size(); ++g) {
        std::vector<std::pair<double, double>> sorted;
        for (std::size_t k = first_[g]; k < end_[g]; ++k) sorted.emplace_back(values[k], part_[k]);
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t i = 0; i < sorted.size(); ++i) {
            const double t = sorted[i].first;
            segments_.push_back({i == 0 ? t : (t + sorted[i - 1].first) / 2,
                                 i + 1 == sorted.size() ? t : (t + sorted[i + 1].first) / 2,
                                 sorted[i].second});
        }
    }
    return quantile(0.5);
}

}  // namespace xstage::model
