#include "model/order.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace xstage::model {
namespace {

enum Field { kSlowest, kLag, kFree, kAtOnce, kInTurn, kSlow, kFields };

}  // namespace

IssueOrder::IssueOrder(const FluidModel& model)
    : classes_(model.classes.size()), tail_(model.tail) {
    double all = 0;
    std::size_t k = 0;
    for (std::size_t g = 0; g < model.groups.size(); ++g) {
        first_.push_back(k);
        const FluidGroup& group = model.groups[g];
        const double groups =
            group.count * model.clusters[static_cast<std::size_t>(group.cluster)].count;
        for (; k < classes_ && model.classes[k].group == static_cast<int>(g); ++k) {
            part_.push_back(model.classes[k].count * groups);
            all += part_.back();
        }
        end_.push_back(k);
    }
    for (double& part : part_) part /= all;
}

void IssueOrder::ended(std::size_t burst, std::size_t k, const IssueTime& time,
                       FluidResult& result) {
    const std::size_t stride = classes_ * kFields;
    while (burst - first_open_ >= missing_.size()) {
        missing_.push_back(classes_);
        open_.insert(open_.end(), stride, 0.0F);
    }
    const std::size_t at = (burst - first_open_) * stride;
    const std::array<double, kFields> fields{time.slowest, time.lag,     time.free,
                                             time.at_once, time.in_turn, time.slow};
    for (std::size_t f = 0; f < kFields; ++f) {
        open_[at + f * classes_ + k] = static_cast<float>(fields[f]);
    }
    if (--missing_[burst - first_open_] > 0) return;
    std::array<float, kMostClasses * kFields> times;
    std::copy_n(open_.begin() + static_cast<std::ptrdiff_t>(at), stride, times.begin());
    result.slowest[burst] = static_cast<float>(slowest(times.data()));
    result.median[burst] = static_cast<float>(median(times.data()));
    while (!missing_.empty() && missing_.front() == 0) {
        missing_.pop_front(), ++first_open_;
        open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(stride));
    }
}

// A class stands for the middle of its producers' luck; a group's slowest producer has less.
double IssueOrder::slowest(const float* times) const {
    double all = 0;
    for (std::size_t g = 0; g < first_.size(); ++g) {
        double last = times[first_[g]], before = 0;
        for (std::size_t k = first_[g] + 1; k < end_[g]; ++k) {
            const double t = times[k];
            before = std::max(before, std::min(last, t));
            last = std::max(last, t);
        }
        const bool alone = end_[g] - first_[g] == 1;
        all = std::max(all, last + (alone ? 0 : tail_ * (last - before)));
    }
    return all;
}

double IssueOrder::median(const float* times) {
    const float first = times[0];
    bool alike = times[kAtOnce * classes_] == 0;
    for (std::size_t k = 1; k < classes_ && alike; ++k) {
        alike = times[k] - first < 1e-5F * first && first - times[k] < 1e-5F * first;
    }
    if (alike) return first - times[kLag * classes_] / 2;
    segments_.clear();
    for (std::size_t g = 0; g < first_.size(); ++g) add_group(g, times);
    return quantile(0.5);
}

// The classes of a group stand for a continuous spread of luck: a class reaches half-way to its
// neighbours, and as far below as its producers' first issuers are ahead of their last.
void IssueOrder::add_group(std::size_t group, const float* times) {
    std::array<std::size_t, kMostClasses> order;
    const auto n = static_cast<std::ptrdiff_t>(end_[group] - first_[group]);
    std::iota(order.begin(), order.begin() + n, first_[group]);
    std::sort(order.begin(), order.begin() + n,
              [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
    for (std::ptrdiff_t i = 0; i < n; ++i) {
        const std::size_t k = order[static_cast<std::size_t>(i)];
        const double t = times[k];
        const auto half_way = [&](std::ptrdiff_t to) {
            if (to < 0 || to >= n) return t;
            return (t + times[order[static_cast<std::size_t>(to)]]) / 2;
        };
        const double low = half_way(i - 1) - times[kLag * classes_ + k], high = half_way(i + 1);
        const double at_once = times[kAtOnce * classes_ + k];
        if (at_once > 0) {
            // Of issuers that begin one by one the first find room; the others wait as ever.
            const double free = times[kFree * classes_ + k];
            const double together = 1 - times[kInTurn * classes_ + k];
            const double last = free + times[kSlow * classes_ + k];
            segments_.push_back({free + (low - free) * together, last + (high - last) * together,
                                 part_[k] * at_once});
        }
        if (at_once < 1) segments_.push_back({low, high, part_[k] * (1 - at_once)});
    }
}

double IssueOrder::quantile(double fraction) {
    double low = segments_[0].low, high = segments_[0].high;
    for (const Segment& s : segments_) low = std::min(low, s.low), high = std::max(high, s.high);
    // The distribution is piecewise linear; halving finds its quantile.
    for (int i = 0; i < 24 && high - low > 1e-4 * high; ++i) {
        const double middle = (low + high) / 2;
        double below = 0;
        for (const Segment& s : segments_) {
            if (middle >= s.high) {
                below += s.part;
            } else if (middle > s.low) {
                below += s.part * (middle - s.low) / (s.high - s.low);
            }
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
            const double low = i == 0 ? t : (t + sorted[i - 1].first) / 2;
            const double high = i + 1 == sorted.size() ? t : (t + sorted[i + 1].first) / 2;
            segments_.push_back({low, high, sorted[i].second});
        }
    }
    return quantile(0.5);
}

}  // namespace xstage::model
