#include "model/order.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace xstage::model {
namespace {

enum Field { kSlowest, kLag, kFree, kAtOnce, kInTurn, kSlow, kFields };

// [begin, end) by value, equal ones in their order; a group has three classes or so.
template <class T>
void sort_indices(std::size_t* out, std::size_t begin, std::size_t end, const T* values) {
    std::size_t n = 0;
    for (std::size_t k = begin; k < end; ++k, ++n) {
        std::size_t i = n;
        for (; i > 0 && values[k] < values[out[i - 1]]; --i) out[i] = out[i - 1];
        out[i] = k;
    }
}

}  // namespace

IssueOrder::IssueOrder(const FluidModel& model, std::size_t bursts, FluidDetail detail)
    : classes_(model.classes.size()),
      bursts_(bursts),
      every_(detail == FluidDetail::kEveryBurst),
      tail_(model.tail) {
    double all = 0;
    std::size_t k = 0;
    for (const FluidGroup& group : model.groups) {
        first_[groups_] = k;
        const double groups =
            group.count * model.clusters[static_cast<std::size_t>(group.cluster)].count;
        for (; k < classes_ && model.classes[k].group == static_cast<int>(groups_); ++k) {
            part_[k] = model.classes[k].count * groups;
            all += part_[k];
        }
        end_[groups_++] = k;
    }
    for (std::size_t i = 0; i < classes_; ++i) part_[i] /= all;
    const std::size_t slots = std::min<std::size_t>(bursts, every_ ? 4 : 2);
    missing_.assign(slots, static_cast<std::uint32_t>(classes_));
    times_.resize(slots * classes_ * kFields);
}

std::size_t IssueOrder::slot(std::size_t burst) {
    if (!every_) return burst == 0 ? 0 : 1;
    for (; opened_ <= burst; ++opened_) {
        if (opened_ - first_open_ == missing_.size()) widen();
        missing_[opened_ % missing_.size()] = static_cast<std::uint32_t>(classes_);
    }
    return burst % missing_.size();
}

void IssueOrder::widen() {
    const std::size_t before = missing_.size(), after = 2 * before, stride = classes_ * kFields;
    std::vector<std::uint32_t> missing(after);
    std::vector<float> times(after * stride);
    for (std::size_t b = first_open_; b < opened_; ++b) {
        missing[b % after] = missing_[b % before];
        std::copy_n(&times_[b % before * stride], stride, &times[b % after * stride]);
    }
    missing_ = std::move(missing), times_ = std::move(times);
}

void IssueOrder::ended(std::size_t burst, std::size_t k, const IssueTime& time,
                       FluidResult& result) {
    const std::size_t at = slot(burst);
    float* times = &times_[at * classes_ * kFields];
    const std::array<double, kFields> fields{time.slowest, time.lag,     time.free,
                                             time.at_once, time.in_turn, time.slow};
    for (std::size_t f = 0; f < kFields; ++f) {
        times[f * classes_ + k] = static_cast<float>(fields[f]);
    }
    if (--missing_[at] > 0) return;
    result.slowest[burst] = static_cast<float>(slowest(times));
    result.median[burst] = static_cast<float>(median(times));
    while (every_ && first_open_ < opened_ && missing_[first_open_ % missing_.size()] == 0) {
        ++first_open_;
    }
}

// A class stands for the middle of its producers' luck; a group's slowest producer has less.
double IssueOrder::slowest(const float* times) const {
    double all = 0;
    for (std::size_t g = 0; g < groups_; ++g) {
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
    segment_ = 0;
    for (std::size_t g = 0; g < groups_; ++g) add_group(g, times);
    return quantile(0.5);
}

// The classes of a group stand for a continuous spread of luck: a class reaches half-way to its
// neighbours, and as far below as its producers' first issuers are ahead of their last.
void IssueOrder::add_group(std::size_t group, const float* times) {
    std::array<std::size_t, kMostClasses> order;
    const auto n = static_cast<std::ptrdiff_t>(end_[group] - first_[group]);
    sort_indices(order.data(), first_[group], end_[group], times);
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
            add(free + (low - free) * together, last + (high - last) * together,
                part_[k] * at_once);
        }
        if (at_once < 1) add(low, high, part_[k] * (1 - at_once));
    }
}

double IssueOrder::quantile(double fraction) const {
    const std::span segments(segments_.data(), segment_);
    double low = segments[0].low, high = segments[0].high;
    for (const Segment& s : segments) low = std::min(low, s.low), high = std::max(high, s.high);
    // The distribution is piecewise linear; halving finds its quantile.
    for (int i = 0; i < 24 && high - low > 1e-4 * high; ++i) {
        const double middle = (low + high) / 2;
        double below = 0;
        for (const Segment& s : segments) {
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
    segment_ = 0;
    for (std::size_t g = 0; g < groups_; ++g) {
        std::array<std::size_t, kMostClasses> order;
        const std::size_t n = end_[g] - first_[g];
        sort_indices(order.data(), first_[g], end_[g], values.data());
        for (std::size_t i = 0; i < n; ++i) {
            const double t = values[order[i]];
            const double low = i == 0 ? t : (t + values[order[i - 1]]) / 2;
            const double high = i + 1 == n ? t : (t + values[order[i + 1]]) / 2;
            add(low, high, part_[order[i]]);
        }
    }
    return quantile(0.5);
}

}  // namespace xstage::model
