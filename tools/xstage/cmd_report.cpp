#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/file.hpp"
#include "node_data.hpp"
#include "sim/advise.hpp"
#include "sim/timeline.hpp"
#include "trace/report.hpp"
#include "trace/scenario.hpp"

namespace xstage::cli {
namespace {

/// The scenario's own order and the advisor's choice, or where that is the same, the next best of
/// those that were simulated. A few SMs of GPU 0 stand for all.
trace::PageFigure two_orders(const std::string& file) {
    constexpr int kSms = 6;
    const std::vector<sim::Option> orders = sim::options_of(sim::read_scenario(file));
    const plan::Advice advice = sim::advise(orders);
    int other = advice.choice;
    for (const plan::Ranked& ranked : advice.ranked) {
        if (other == 0 && ranked.simulated_ns >= 0) other = ranked.candidate;
    }
    const auto rows = [&](int i) {
        const sim::Scenario& scenario = orders[static_cast<std::size_t>(i)].scenario;
        sim::RunOptions options;
        options.record = true;
        return sim::timeline(sim::run(scenario.cluster, scenario.programs(), options), 0, 0, kSms);
    };
    const auto name = [&](int i) { return orders[static_cast<std::size_t>(i)].candidate.name; };
    const std::string title = fmt::format("Two orders: {} and {}", name(0), name(other));
    return {title, sim::compare_svg(title, name(0), rows(0), name(other), rows(other)),
            fmt::format("{} SMs of GPU 0 and its link, {} above {}; darkest are stalls. {}", kSms,
                        name(0), name(other), advice.reason)};
}

}  // namespace

void add_report(CLI::App& app) {
    struct Options {
        std::string measurements, profile, scenario, orders, output = "report.html";
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("report", "Write one self-contained HTML file about a recording");
    command->add_option("measurements", options->measurements, "measurement document")->required();
    command->add_option("-p,--profile", options->profile,
                        "node profile fitted to it (default: the recorded node)");
    command->add_option("--scenario", options->scenario, "scenario whose occupancy is drawn");
    command->add_option("--orders", options->orders,
                        "simulation scenario: its order and the best one are drawn");
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
        std::vector<trace::PageFigure> more;
        if (!options->orders.empty()) more.push_back(two_orders(options->orders));
        core::write_file_atomic(options->output,
                                trace::report_html(measurements, profile, sequence, more));
        fmt::print(stderr, "xstage report: {} written\n", options->output);
    });
}

}  // namespace xstage::cli
