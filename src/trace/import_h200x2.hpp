#pragma once

#include <string>

#include "xstage/measurement.hpp"

namespace xstage::trace {

/// Reads the first recording of a two-GPU H200 node: stores.csv, and beside it visible.csv,
/// per_sm.csv and stamps.csv where they are there. Throws kBadInput with file, line and column.
Measurements import_h200x2(const std::string& directory);

}  // namespace xstage::trace
