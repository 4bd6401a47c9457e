#pragma once

#include <string>
#include <vector>

#include "core/json.hpp"
#include "sim/result.hpp"

namespace xstage::sim {

/// The result as a document (kind xstage.sim_result). Times in ns, sizes in bytes. What is
/// said of SMs comes in columns: entry n is SM n's.
core::Json to_json(const Result& result, const std::vector<std::string>& assumptions);

}  // namespace xstage::sim
