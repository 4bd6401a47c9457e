#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/ulysses/bench.hpp"

namespace xstage::ulysses {

/// Microseconds of every repetition, by shape and variant.
struct Times {
    std::vector<double> sender;    ///< until this rank may go on
    std::vector<double> receiver;  ///< until it may read its rows
};
struct ShapeTimes {
    std::map<std::string, Times> variants;
    std::map<std::string, std::string> plans;
    std::map<std::string, std::string> missing;  ///< variants that could not run, and why
    std::map<std::string, double> differing;     ///< elements unlike those of the serial way
    std::map<std::string, double> wrong;         ///< and those that no rounding explains
};

/// One process's part of the benchmark.
std::vector<ShapeTimes> bench_rank(const BenchOptions& options, int rank, const std::string& group);

}  // namespace xstage::ulysses
