#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/json.hpp"
#include "sim/advise.hpp"

namespace xstage::cli {
namespace {

core::Json to_json(const plan::Advice& advice, const std::vector<sim::Option>& options) {
    const auto name = [&](int i) { return options[static_cast<std::size_t>(i)].candidate.name; };
    core::Json out;
    out["schema_version"] = 1;
    out["kind"] = "xstage.advice";
    out["choice"] = name(advice.choice);
    out["baseline"] = name(0);
    out["gain"] = advice.gain;
    out["interval"] = {advice.gain_low, advice.gain_high};
    out["reason"] = advice.reason;
    out["assumptions"] = options.front().scenario.assumptions();
    out["orders"] = core::Json::array();
    for (const plan::Ranked& ranked : advice.ranked) {
        core::Json row;
        row["order"] = name(ranked.candidate);
        row["closed_form_ns"] = ranked.closed_form.total_ns;
        row["stall_ns"] = ranked.closed_form.stall_ns;
        row["tail_ns"] = ranked.closed_form.tail_ns;
        if (ranked.simulated_ns >= 0) {
            row["simulated_ns"] = ranked.simulated_ns;
        } else {
            row["simulated_ns"] = nullptr;
            row["reason"] = "not among the best by the closed form";
        }
        out["orders"].push_back(row);
    }
    return out;
}

void print_text(const plan::Advice& advice, const std::vector<sim::Option>& options) {
    const auto name = [&](int i) { return options[static_cast<std::size_t>(i)].candidate.name; };
    fmt::print("{}: {:.3f}x over {} ({:.3f} to {:.3f})\n{}\n", name(advice.choice), advice.gain,
               name(0), advice.gain_low, advice.gain_high, advice.reason);
    fmt::print("{:<28} {:>14} {:>14}\n", "order", "closed form us", "simulated us");
    for (const plan::Ranked& ranked : advice.ranked) {
        const std::string simulated =
            ranked.simulated_ns >= 0 ? fmt::format("{:.1f}", ranked.simulated_ns / 1e3) : "-";
        fmt::print("{:<28} {:>14.1f} {:>14}\n", name(ranked.candidate),
                   ranked.closed_form.total_ns / 1e3, simulated);
    }
    for (const std::string& assumption : options.front().scenario.assumptions()) {
        fmt::print("assumed: {}\n", assumption);
    }
}

}  // namespace

void add_advise(CLI::App& app) {
    struct Options {
        std::string scenario, node;
        bool json = false;
        int threads = 0;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("advise", "Compare the orders of a workload: which, why, and the gain");
    command->add_option("scenario", options->scenario, "scenario document; - for standard input")
        ->required();
    command->add_option("--node", options->node, "node document to use instead of the scenario's");
    command->add_option("--threads", options->threads, "0: as many as the machine has")
        ->check(CLI::Range(0, 1024));
    command->add_flag("--json", options->json, "write the advice as JSON");
    command->callback([options] {
        const std::vector<sim::Option> orders =
            sim::options_of(sim::read_scenario(options->scenario, options->node));
        const plan::Advice advice = sim::advise(orders, options->threads);
        if (options->json) {
            fmt::print("{}", core::dump_json(to_json(advice, orders)));
        } else {
            print_text(advice, orders);
        }
    });
}

}  // namespace xstage::cli
