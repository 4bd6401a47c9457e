#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/csv.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "node_data.hpp"
#include "trace/scenario.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"
#include "xstage/model.hpp"

namespace xstage::cli {

void add_predict(CLI::App& app) {
    struct Options {
        std::string scenario = "-", profile, bursts, path = "st16", gap_from = "producer";
        int producers = 132, warps = 4, destinations = 1;
        double clock_ghz = 0;
        bool csv = false, json = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("predict", "Predict what a sequence of bursts and gaps costs on a node");
    auto* scenario = command->add_option("scenario", options->scenario,
                                         "scenario document; - for standard input");
    command->add_option("-p,--profile", options->profile,
                        "node profile (default: the recorded node)");
    auto* bursts = command->add_option(
        "--bursts", options->bursts,
        "CSV with the columns bytes_per_producer and gap_ns, in place of a scenario");
    bursts->excludes(scenario);
    const auto load = [&](CLI::Option* option) { option->needs(bursts); };
    load(command->add_option("--path", options->path, "with --bursts: st16 or bulk")
             ->check(CLI::IsMember({"st16", "bulk"})));
    load(command->add_option("--producers", options->producers, "with --bursts: SMs that store")
             ->check(CLI::Range(1, 100000)));
    load(command->add_option("--warps", options->warps, "with --bursts: warps per SM")
             ->check(CLI::Range(1, 64)));
    load(command
             ->add_option("--destinations", options->destinations, "with --bursts: GPUs stored to")
             ->check(CLI::Range(1, 1024)));
    load(command->add_option("--clock-ghz", options->clock_ghz, "with --bursts: SM clock")
             ->check(CLI::PositiveNumber));
    load(
        command->add_option("--gap-from", options->gap_from, "with --bursts: producer, warp or all")
            ->check(CLI::IsMember({"producer", "all"})));
    auto* csv = command->add_flag("--csv", options->csv, "print the bursts as CSV");
    command->add_flag("--json", options->json, "print JSON (the default)")->excludes(csv);
    command->callback([options] {
        model::Scenario scenario;
        if (options->bursts.empty()) {
            scenario = trace::scenario_from_json(
                core::parse_json(core::read_file(options->scenario), options->scenario),
                options->scenario);
        } else {
            scenario.path = options->path;
            scenario.producers = options->producers;
            scenario.warps = options->warps;
            scenario.destinations = options->destinations;
            scenario.gap_from = options->gap_from == "all"    ? GapFrom::kAll
                                : options->gap_from == "warp" ? GapFrom::kWarp
                                                              : GapFrom::kProducer;
            if (options->clock_ghz > 0) scenario.clock = GigaHertz{options->clock_ghz};
            scenario.bursts = trace::bursts_from_csv(
                core::CsvTable::parse(core::read_file(options->bursts), options->bursts));
            if (scenario.bursts.empty()) {
                throw Error(ErrorKind::kBadInput,
                            options->bursts + ":1: expected at least one burst");
            }
        }
        const ProfileDocument profile = read_profile(profile_path(options->profile));
        const model::Prediction prediction = predict(scenario, profile.profile);
        core::write_file_atomic("-", options->csv ? trace::prediction_csv(prediction)
                                                  : trace::prediction_json(prediction));
    });
}

}  // namespace xstage::cli
