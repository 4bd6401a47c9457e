#pragma once

#include <string>

#include "core/csv.hpp"
#include "core/json.hpp"
#include "xstage/model.hpp"

namespace xstage::trace {

/// A scenario document (schemas/scenario.schema.json). Throws kBadInput with the JSON path.
model::Scenario scenario_from_json(const core::Json& document, const std::string& file);

/// Bursts from a table with the column bytes_per_producer and, if wanted, gap_ns.
std::vector<model::ScenarioBurst> bursts_from_csv(const core::CsvTable& table);

/// The answer of `xstage predict` as JSON, one burst a line.
std::string prediction_json(const model::Prediction& prediction);
/// The bursts alone, with a header line; an absent visible time is an empty cell.
std::string prediction_csv(const model::Prediction& prediction);

}  // namespace xstage::trace
