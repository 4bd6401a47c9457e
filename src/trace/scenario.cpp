#include "trace/scenario.hpp"

#include <fmt/format.h>

#include <cmath>

#include "trace/enum_names.hpp"

namespace xstage::trace {
namespace {

std::string number_or_null(const std::optional<Nanoseconds>& time) {
    return time ? fmt::format("{:.1f}", time->value()) : "null";
}

}  // namespace

model::Scenario scenario_from_json(const core::Json& document, const std::string& file) {
    core::validate(document, "scenario", file);
    model::Scenario out;
    out.path = document.at("path");
    out.producers = document.at("producers");
    out.warps = document.value("warps", 4);
    if (document.contains("clock_ghz")) out.clock = GigaHertz{document["clock_ghz"].get<double>()};
    out.destinations = document.value("destinations", 1);
    out.gap_from = enum_value<GapFrom>(document.value("gap_from", "producer"));
    out.bursts.reserve(document.at("bursts").size());
    for (const core::Json& burst : document["bursts"]) {
        out.bursts.push_back({Bytes{burst.at("bytes_per_producer").get<double>()},
                              Nanoseconds{burst.value("gap_ns", 0.0)}});
    }
    return out;
}

std::vector<model::ScenarioBurst> bursts_from_csv(const core::CsvTable& table) {
    const bool gaps = table.has("gap_ns");
    std::vector<model::ScenarioBurst> out;
    out.reserve(table.rows());
    for (std::size_t row = 0; row < table.rows(); ++row) {
        const double bytes = table.number(row, "bytes_per_producer");
        if (bytes == 0) table.fail(row, "bytes_per_producer", "a number > 0");
        out.push_back({Bytes{bytes}, Nanoseconds{gaps ? table.number(row, "gap_ns") : 0}});
    }
    return out;
}

// Written by hand and not through a JSON value: a million bursts would need gigabytes there.
std::string prediction_json(const model::Prediction& prediction) {
    fmt::memory_buffer out;
    const auto to = fmt::appender(out);
    fmt::format_to(to, "{{\n  \"bursts\": [");
    const char* separator = "\n";
    for (const model::BurstPrediction& burst : prediction.bursts) {
        fmt::format_to(
            to,
            "{}    {{\"issue_ns\": {:.1f}, \"issue_median_ns\": {:.1f}, \"stall_ns\": {:.1f}, "
            "\"drained_ns\": {:.1f}, \"visible_ns\": {}, \"queued_bytes\": {:.0f}}}",
            separator, burst.issue.value(), burst.issue_median.value(), burst.stall.value(),
            burst.drained.value(), number_or_null(burst.visible), burst.queued.value());
        separator = ",\n";
    }
    fmt::format_to(to,
                   "\n  ],\n  \"total_ns\": {:.1f},\n  \"onset_bytes_per_producer\": {:.0f},\n"
                   "  \"recovery_ns\": {},\n  \"interval\": ",
                   prediction.total.value(), prediction.onset.value(),
                   number_or_null(prediction.recovery));
    if (prediction.issue) {
        fmt::format_to(to, "{{\"issue_ns\": [{:.1f}, {:.1f}]}}\n}}\n", prediction.issue->low,
                       prediction.issue->high);
    } else {
        fmt::format_to(to, "null\n}}\n");
    }
    return fmt::to_string(out);
}

std::string prediction_csv(const model::Prediction& prediction) {
    fmt::memory_buffer out;
    const auto to = fmt::appender(out);
    fmt::format_to(to, "issue_ns,issue_median_ns,stall_ns,drained_ns,visible_ns,queued_bytes\n");
    for (const model::BurstPrediction& burst : prediction.bursts) {
        fmt::format_to(to, "{:.1f},{:.1f},{:.1f},{:.1f},{},{:.0f}\n", burst.issue.value(),
                       burst.issue_median.value(), burst.stall.value(), burst.drained.value(),
                       burst.visible ? fmt::format("{:.1f}", burst.visible->value()) : "",
                       burst.queued.value());
    }
    return fmt::to_string(out);
}

}  // namespace xstage::trace
