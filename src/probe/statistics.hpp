#pragma once

#include <vector>

#include "probe/node.hpp"
#include "xstage/measurement.hpp"

namespace xstage::probe {

/// Percentile `p` in [0, 100] by linear interpolation between the two nearest ranks. `values` need
/// not be sorted and must not be empty (throws std::invalid_argument).
double percentile(std::vector<double> values, double p);
double percentile_of_sorted(const std::vector<double>& values, double p);
double median(std::vector<double> values);

/// 1.4826 times the median distance from the median: the standard deviation of a normal sample,
/// deaf to a few outliers. Zero for fewer than two values.
double robust_deviation(const std::vector<double>& values);

/// p5, p50, p95 and slowest over workers, for one sample.
Spread spread_of(std::vector<double> workers);

/// The median of each figure over samples: what a typical launch showed, slowest worker included.
Spread typical(const std::vector<Spread>& samples);

/// A document's row from samples of one configuration; `clock`, `marked` and counts are the
/// caller's. `noise` is the robust deviation of the slowest worker's total over the samples,
/// relative.
BurstRow summarise(const StoreConfig& config, const std::vector<StoreSample>& samples);

VisibleRow summarise(const VisibleConfig& config, const std::vector<VisibleSample>& samples);

/// SM ids whose issue times form one group: a new group begins where two neighbours in the order of
/// time are further apart than `gap` times the faster. Fastest group first.
std::vector<std::vector<int>> speed_groups(const std::vector<std::optional<Cycles>>& issue_by_sm,
                                           double gap);

}  // namespace xstage::probe
