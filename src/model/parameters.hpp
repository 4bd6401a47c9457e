#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "xstage/profile.hpp"

namespace xstage::model {

/// One number that the fit may move. It is fitted as a transform that keeps it within its bounds:
/// the logarithm where there is no upper bound, else the logit between the two.
struct Parameter {
    std::string name;
    std::string unit;
    std::string meaning;
    std::size_t path;  ///< index of the path it belongs to, or kShared
    double low, high;  ///< bounds; `high` infinite for the logarithm
    std::function<double(const Profile&)> get;
    std::function<void(Profile&, double)> set;
};

constexpr std::size_t kShared = std::numeric_limits<std::size_t>::max();

/// All parameters of a profile with these paths.
std::vector<Parameter> all_parameters(const Profile& profile);

double to_free(const Parameter& parameter, double value);
double from_free(const Parameter& parameter, double free);

/// A start for the fit that knows no recording: an SM's rates and rooms to an order of magnitude.
StorePath default_path(const std::string& name);
Network default_network();

}  // namespace xstage::model
