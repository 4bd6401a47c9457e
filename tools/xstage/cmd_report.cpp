#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/file.hpp"
#include "node_data.hpp"
#include "trace/report.hpp"
#include "trace/scenario.hpp"

namespace xstage::cli {

void add_report(CLI::App& app) {
    struct Options {
        std::string measurements, profile, scenario, output = "report.html";
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("report", "Write one self-contained HTML file about a recording");
    command->add_option("measurements", options->measurements, "measurement document")->required();
    command->add_option("-p,--profile", options->profile,
                        "node profile fitted to it (default: the recorded node)");
    command->add_option("--scenario", options->scenario, "scenario whose occupancy is drawn");
    command->add_option("-o,--output", options->output, "file to write; - for standard output");
    command->callback([options] {
        const Measurements measurements = read_measurements(options->measurements);
        const ProfileDocument profile = read_profile(profile_path(options->profile));
        std::optional<model::Scenario> sequence;
        if (!options->scenario.empty()) {
            sequence = trace::scenario_from_json(
                core::parse_json(core::read_file(options->scenario), options->scenario),
                options->scenario);
        }
        core::write_file_atomic(options->output,
                                trace::report_html(measurements, profile, sequence));
        fmt::print(stderr, "xstage report: {} written\n", options->output);
    });
}

}  // namespace xstage::cli
