#include "trace/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trace/report_figures.hpp"
#include "trace/report_page.hpp"

namespace xstage::trace {
namespace {

using model::Scenario;

std::string percent(const std::optional<double>& share) {
    return share ? fmt::format("{:.1f}%", 100 * *share) : "";
}

PageTable parameter_table(const model::Profile& profile) {
    PageTable table{
        "Parameters", {"parameter", "value", "95% interval", "unit", "meaning"}, {}, ""};
    for (const model::Estimate& e : profile.parameters) {
        const std::string interval =
            e.low && e.high ? fmt::format("{} to {}", short_number(*e.low), short_number(*e.high))
                            : "";
        const std::string meaning =
            e.reason.empty() ? e.meaning : fmt::format("{}. {}", e.meaning, e.reason);
        table.rows.push_back({e.name, e.value ? short_number(*e.value) : "not identified", interval,
                              e.unit, meaning});
    }
    return table;
}

PageTable error_table(const model::Profile& profile) {
    PageTable table{"Errors on held-out rows",
                    {"rows", "path", "SMs", "statistic", "n", "median", "90th percentile",
                     "median, 3 parameters", "90th, 3 parameters"},
                    {},
                    "Each configuration was predicted by a fit that had not seen it."};
    for (const model::ErrorLine& line : profile.held_out) {
        table.rows.push_back(
            {line.what, line.path, line.producers == 0 ? "all" : std::to_string(line.producers),
             line.statistic, std::to_string(line.rows), percent(line.median), percent(line.p90),
             percent(line.simple_median), percent(line.simple_p90)});
    }
    return table;
}

/// Four bursts of twice the onset with half the gap that would hide them: they stall, and then
/// less.
Scenario default_sequence(const model::Profile& profile, Scenario load) {
    const Bytes bytes = onset(profile, load) * 2;
    const Nanoseconds gap = recovery_gap(profile, load, bytes) / 2;
    load.bursts.assign(4, {bytes, gap});
    return load;
}

}  // namespace

std::string short_number(double value) {
    return std::abs(value) >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string report_html(const Measurements& measurements, const ProfileDocument& document,
                        const std::optional<Scenario>& sequence,
                        const std::vector<PageFigure>& more) {
    const model::Profile& profile = document.profile;
    const Scenario load = typical_load(measurements, profile);
    const Bytes free = onset(profile, load);
    const Bytes asked{32768};
    const auto comparisons = compare(measurements, profile);

    Page page;
    page.title = fmt::format("Remote stores of {}", profile.node);
    page.lead = fmt::format(
        "{} rows; {} of path {} with {} warps each unless said otherwise. Times are of the slowest "
        "SM.",
        profile.rows, fmt::format("{} SMs", load.producers), load.path, load.warps);
    page.answers = {
        {fmt::format("{:.4g} KB", free.value() / 1024),
         "may be stored per SM before it stalls (onset)"},
        {fmt::format("{:.1f} us", recovery_gap(profile, load, free).value() / 1000),
         "to compute before such a burst is free again"},
        {fmt::format("{:.1f} us", recovery_gap(profile, load, asked).value() / 1000),
         "to compute between bursts of 32 KB per SM"},
        {fmt::format("{:.0f} GB/s", profile.network.drain.value()),
         "drain rate of the link, all SMs together"},
    };
    page.figures = {
        issue_figure(measurements, profile, load),
        second_burst_figure(measurements, profile, load),
        occupancy_figure(profile, sequence ? *sequence : default_sequence(profile, load)),
        onset_map_figure(profile, load),
        scatter_figure(comparisons),
        error_figure(comparisons)};
    page.figures.insert(page.figures.end(), more.begin(), more.end());
    page.tables = {parameter_table(profile), error_table(profile)};
    page.provenance = document.recording;
    page.provenance.warnings.insert(page.provenance.warnings.end(), profile.notes.begin(),
                                    profile.notes.end());
    return render(page);
}

}  // namespace xstage::trace
