#pragma once

#include <CLI/CLI.hpp>

namespace xstage::cli {

// One function per command; each adds its options and a callback to the application. A callback
// throws Error, whose kind is the exit code; exit_with gives any other code.
void add_advise(CLI::App& app);
void add_bench(CLI::App& app);
void add_bench_moe(CLI::App& bench, const CLI::App& app);
void add_env(CLI::App& app);
void add_fit(CLI::App& app);
void add_import(CLI::App& app);
void add_mask(CLI::App& app);
void add_predict(CLI::App& app);
void add_probe(CLI::App& app);
void add_report(CLI::App& app);
void add_simulate(CLI::App& app);

/// Ends the command with this code once its output is written (a check that did not hold, say).
struct ExitWith {
    int code;
};

}  // namespace xstage::cli
