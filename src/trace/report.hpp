#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trace/report_page.hpp"
#include "xstage/documents.hpp"
#include "xstage/model.hpp"

namespace xstage::trace {

/// A number as tables show it: four digits or all whole ones, no exponent.
std::string short_number(double value);

/// The report of a recording and the profile fitted to it: one self-contained HTML file. `sequence`
/// is the scenario whose occupancy is drawn; without one, four bursts around the onset are. `more`
/// are figures that follow its own.
std::string report_html(const Measurements& measurements, const ProfileDocument& profile,
                        const std::optional<model::Scenario>& sequence = std::nullopt,
                        const std::vector<PageFigure>& more = {});

}  // namespace xstage::trace
