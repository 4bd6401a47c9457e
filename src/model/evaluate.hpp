#pragma once

#include <string>
#include <vector>

#include "model/cases.hpp"
#include "xstage/model.hpp"

namespace xstage::model {

/// Relative errors of one prediction against one recorded number.
struct ErrorSample {
    std::string what;
    std::size_t path;
    int producers;
    bool slowest;
    double error;  ///< absolute value
};

/// Errors of a profile on cases: isolated and second issue times, total of long sequences, and
/// their mean issue time (total / bursts - gap), whose error is taken against the period where the
/// mean is smaller than a tenth of it.
std::vector<ErrorSample> errors_on(const Profile& profile, const std::vector<Case>& cases);

/// The same for the three-parameter model; cases of a path without a calibration are left out.
std::vector<ErrorSample> simple_errors_on(const Profile& like,
                                          const std::vector<Calibration>& calibrations,
                                          const std::vector<Case>& cases);

/// Medians and 90th percentiles by kind, path, producers (0: all) and statistic.
std::vector<ErrorLine> summarise(const Profile& profile, const std::vector<ErrorSample>& samples,
                                 const std::vector<ErrorSample>& simple);

double percentile(std::vector<double> values, double fraction);

}  // namespace xstage::model
