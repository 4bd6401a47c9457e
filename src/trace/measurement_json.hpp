#pragma once

#include <string>

#include "core/json.hpp"
#include "xstage/measurement.hpp"

namespace xstage::trace {

/// Throws kBadInput with the JSON path for whatever the schema cannot say: unknown SM counts,
/// duplicate configurations, issue curves that are not sorted.
Measurements measurements_from_json(const core::Json& document, const std::string& file);
core::Json to_json(const Measurements& measurements);

Provenance provenance_from_json(const core::Json& document);
core::Json to_json(const Provenance& provenance);

}  // namespace xstage::trace
