#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "sim/result_json.hpp"
#include "sim/scenario.hpp"
#include "sim/timeline.hpp"

namespace xstage::cli {
namespace {

void print_text(const sim::Scenario& scenario, const sim::Result& result) {
    if (!scenario.name.empty()) fmt::print("{}\n", scenario.name);
    fmt::print("total {:.1f} us on {} GPUs ({}){}\n", result.total_ns / 1e3, scenario.cluster.gpus,
               scenario.cluster.node.name, result.incast ? ", some ingress links overrun" : "");
    fmt::print("{:>4} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}\n", "GPU", "issued us",
               "drained us", "visible us", "stall us", "worst SM us", "gates us", "in flight");
    for (std::size_t r = 0; r < result.ranks.size(); ++r) {
        const sim::RankResult& rank = result.ranks[r];
        double stall = 0, worst = 0, gate = 0;
        for (const sim::ProducerResult& sm : rank.producers) {
            stall += sm.stall_ns;
            worst = std::max(worst, sm.stall_ns);
            gate += sm.gate_ns;
        }
        const auto sms = static_cast<double>(std::max<std::size_t>(1, rank.producers.size()));
        fmt::print(
            "{:>4} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.2f} {:>12.2f} {:>12.2f} {:>7.2f} MB\n", r,
            rank.issued_ns / 1e3, rank.drained_ns / 1e3, rank.visible_ns / 1e3, stall / sms / 1e3,
            worst / 1e3, gate / sms / 1e3, rank.peak_bytes / 1e6);
    }
    for (const std::string& assumption : scenario.assumptions())
        fmt::print("assumed: {}\n", assumption);
}

}  // namespace

void add_simulate(CLI::App& app) {
    struct Options {
        std::string scenario, node, trace;
        bool json = false;
        int threads = 0;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("simulate", "Simulate the stores of a kernel's schedule on N GPUs");
    command->add_option("scenario", options->scenario, "scenario document; - for standard input")
        ->required();
    command->add_option("--node", options->node, "node document to use instead of the scenario's");
    command->add_option("--trace", options->trace, "write a Chrome trace (opens in Perfetto)");
    command->add_option("--threads", options->threads, "0: as many as the machine has")
        ->check(CLI::Range(0, 1024));
    command->add_flag("--json", options->json, "write the result as JSON");
    command->callback([options] {
        sim::Scenario scenario = sim::read_scenario(options->scenario, options->node);
        sim::RunOptions run_options;
        run_options.record = !options->trace.empty();
        run_options.threads = options->threads;
        sim::Result result = sim::run(scenario.cluster, scenario.programs(), run_options);
        if (scenario.moe) result.total_ns += scenario.moe->fixed_ns;
        if (!options->trace.empty()) {
            core::write_file_atomic(options->trace, sim::chrome_trace(result).json());
        }
        if (options->json) {
            fmt::print("{}", core::dump_json(sim::to_json(result, scenario.assumptions())));
        } else {
            print_text(scenario, result);
        }
    });
}

}  // namespace xstage::cli
