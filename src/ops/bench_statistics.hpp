#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace xstage::bench {

/// The value that a share `q` of the values does not exceed, nearest rank. `values` is not empty.
double quantile(std::vector<double> values, double q);

/// {"median", "interval95"} of the ratios a[i] / b[i] of repetitions that ran within the same
/// round; the interval is a bootstrap of the median, always from the same seed.
nlohmann::ordered_json ratio(const std::vector<double>& a, const std::vector<double>& b);

/// UTC, as ISO 8601.
std::string now();

}  // namespace xstage::bench
