#pragma once

#include <string>
#include <vector>

#include "xstage/measurement.hpp"

namespace xstage::probe {

/// One configuration in both documents, by the total of its slowest worker.
struct RowChange {
    std::string configuration;
    double base_cycles = 0;
    double now_cycles = 0;
    double tolerance = 0;  ///< relative: what noise alone may do

    double ratio() const { return now_cycles / base_cycles; }
    bool slower() const { return ratio() > 1 + tolerance; }
    bool faster() const { return ratio() < 1 / (1 + tolerance); }
};

struct Comparison {
    std::vector<RowChange> rows;
    int only_in_base = 0;
    int only_now = 0;
    std::vector<std::string>
        cautions;  ///< why the two may not be comparable: other GPU, driver, clock

    double share_slower() const;
    /// More rows are slower than noise makes so (see kMostSlower).
    bool regressed() const;
};

/// A row's tolerance: three robust deviations of the two rows together, but never under 5%.
inline constexpr double kLeastTolerance = 0.05;
/// Rows beyond their tolerance that are put down to chance.
inline constexpr double kMostSlower = 0.05;

/// Marked rows are left out: their clock is not the run's.
Comparison compare(const Measurements& base, const Measurements& now);

}  // namespace xstage::probe
