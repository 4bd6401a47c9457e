#pragma once

#include "trace/report_page.hpp"
#include "xstage/measurement.hpp"
#include "xstage/model.hpp"

namespace xstage::trace {

/// The configuration that the figures speak of: the path, warps and most producers of a recording.
model::Scenario typical_load(const Measurements& measurements, const model::Profile& profile);

PageFigure issue_figure(const Measurements& measurements, const model::Profile& profile,
                        const model::Scenario& load);
PageFigure second_burst_figure(const Measurements& measurements, const model::Profile& profile,
                               const model::Scenario& load);
PageFigure occupancy_figure(const model::Profile& profile, const model::Scenario& sequence);
PageFigure onset_map_figure(const model::Profile& profile, const model::Scenario& load);

/// One recorded issue time beside what both models say of it, in nanoseconds.
struct Comparison {
    double recorded, hierarchical;
    std::optional<double> simple;  ///< three-parameter model, where it speaks of this path
};
/// The slowest producer's first or second burst of every remote row that the model covers.
std::vector<Comparison> compare(const Measurements& measurements, const model::Profile& profile);

PageFigure scatter_figure(const std::vector<Comparison>& comparisons);
PageFigure error_figure(const std::vector<Comparison>& comparisons);

}  // namespace xstage::trace
