#include <fmt/chrono.h>
#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/json.hpp"
#include "git_commit.hpp"
#include "trace/profile_json.hpp"
#include "trace/report.hpp"
#include "trace/report_figures.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

void print_profile(const model::Profile& profile, const model::Scenario& load) {
    fmt::print("{}: {} rows\n\n{:<34}{:>14}  {:<22}{:<12}{}\n", profile.node, profile.rows,
               "parameter", "value", "95% interval", "unit", "meaning");
    for (const model::Estimate& e : profile.parameters) {
        const std::string interval =
            e.low && e.high
                ? fmt::format("{} to {}", trace::short_number(*e.low), trace::short_number(*e.high))
                : "";
        fmt::print("{:<34}{:>14}  {:<22}{:<12}{}\n", e.name,
                   e.value ? trace::short_number(*e.value) : "not identified", interval, e.unit,
                   e.value ? e.meaning : e.reason);
    }
    if (!profile.held_out.empty()) {
        fmt::print("\n{:<34}{:<8}{:>5}  {:<10}{:>6}{:>10}{:>10}{:>20}\n", "held-out rows", "path",
                   "SMs", "statistic", "n", "median", "90th pct", "three parameters");
        for (const model::ErrorLine& line : profile.held_out) {
            if (line.producers != 0) continue;  // the document and the report have each SM count
            const std::string simple =
                line.simple_median ? fmt::format("{:.1f}%, {:.1f}%", 100 * *line.simple_median,
                                                 100 * line.simple_p90.value_or(0))
                                   : "";
            fmt::print("{:<34}{:<8}{:>5}  {:<10}{:>6}{:>9.1f}%{:>9.1f}%{:>20}\n", line.what,
                       line.path, line.producers == 0 ? "all" : std::to_string(line.producers),
                       line.statistic, line.rows, 100 * line.median, 100 * line.p90, simple);
        }
    }
    const Bytes free = onset(profile, load);
    fmt::print("\n{} SMs, {} warps each, path {}:\n", load.producers, load.warps, load.path);
    fmt::print("  onset      {:>8.1f} KB per SM are issued before the slowest SM stalls\n",
               free.value() / 1024);
    for (const double bytes : {free.value(), 32768.0}) {
        fmt::print("  recovery   {:>8.1f} us between bursts of {:.1f} KB per SM\n",
                   recovery_gap(profile, load, Bytes{bytes}).value() / 1000, bytes / 1024);
    }
    for (const std::string& note : profile.notes) fmt::print("  note: {}\n", note);
}

}  // namespace

void add_fit(CLI::App& app) {
    struct Options {
        std::string measurements, output;
        bool json = false;
        std::uint64_t seed = 1;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("fit", "Fit the Burst-Gap models to a measurement document");
    command
        ->add_option("measurements", options->measurements,
                     "measurement document; - for standard input")
        ->required();
    command->add_option("-o,--output", options->output, "node profile to write");
    command->add_flag("--json", options->json, "print the node profile instead of tables");
    command->add_option("--seed", options->seed, "of the bootstrap");
    command->callback([options] {
        const Measurements measurements = read_measurements(options->measurements);
        if (measurements.provenance.loopback) {
            throw Error(
                ErrorKind::kBadInput,
                options->measurements +
                    ": /provenance/loopback: expected a link, found stores to local memory");
        }
        ProfileDocument document;
        document.recording = measurements.provenance;
        model::FitOptions fit_options;
        fit_options.seed = options->seed;
        document.profile = model::fit(measurements, fit_options);
        document.fitted = {options->measurements,
                           kVersion,
                           kGitCommit,
                           {"xstage", "fit", options->measurements},
                           fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))};
        if (!options->output.empty()) write_profile(options->output, document);
        if (options->json) {
            fmt::print("{}", core::dump_json(trace::to_json(document)));
        } else {
            print_profile(document.profile, trace::typical_load(measurements, document.profile));
        }
    });
}

}  // namespace xstage::cli
