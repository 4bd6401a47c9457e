#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>

#include "ops/moe/bench.hpp"

namespace xstage::moe {

/// One process's part of the benchmark: an array with one row per configuration. Each has what the
/// configuration is, microseconds of every repetition by order, and what its ranks measured beside.
/// `stop` lies in memory that all processes share: rank 0 sets it when the time is up.
nlohmann::ordered_json bench_rank(const BenchOptions& options, int rank, const std::string& group,
                                  std::atomic<int>& stop);

/// The orders that a configuration is timed under: the options', and the advisor's.
std::vector<plan::MoeOrder> orders_of(const BenchOptions& options, const Problem& problem);

}  // namespace xstage::moe
