#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <sstream>

#include "commands.hpp"
#include "core/file.hpp"
#include "git_commit.hpp"
#include "probe/axis.hpp"
#include "probe/filter.hpp"
#include "probe/probe.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

std::unique_ptr<probe::Node> open_node(const probe::NodeOptions& options) {
#ifdef XSTAGE_HAVE_CUDA
    return probe::open_cuda_node(options);
#else
    static_cast<void>(options);
    throw Error(ErrorKind::kUnsupported, "this xstage was built without CUDA and cannot measure");
#endif
}

std::vector<std::string> command_line() {
    std::istringstream text(core::read_file("/proc/self/cmdline"));
    std::vector<std::string> argv;
    for (std::string word; std::getline(text, word, '\0');) argv.push_back(word);
    return argv;
}

struct Flags {
    probe::ProbeOptions probe;
    std::string bytes, sms, warps, gaps, paths, measured, trials = "10000000";
};

void parse_axes(const Flags& flags, probe::Axes& axes) {
    const auto parse = [](const std::string& text, const char* name, auto& values) {
        if (!text.empty()) values = probe::parse_axis(text, name);
    };
    parse(flags.bytes, "bytes", axes.bytes);
    parse(flags.sms, "sms", axes.sms);
    parse(flags.warps, "warps", axes.warps);
    parse(flags.gaps, "gaps", axes.gaps);
    std::istringstream paths(flags.paths);
    for (std::string path; std::getline(paths, path, ',');) axes.paths.push_back(path);
}

void run(Flags& flags) {
    probe::ProbeOptions& options = flags.probe;
    parse_axes(flags, options.axes);
    options.litmus_trials = probe::parse_size(flags.trials, "trials");
    const probe::Filter check_only(options.filters);
    if (!flags.measured.empty()) {
        if (options.base.empty()) {
            throw Error(ErrorKind::kBadInput,
                        "--measured needs --compare: there is nothing to measure");
        }
        const int code = probe::print_comparison(read_measurements(options.base),
                                                 read_measurements(flags.measured), stdout);
        if (code != 0) throw ExitWith{code};
        return;
    }
    if (options.output == "-") {
        throw Error(
            ErrorKind::kBadInput,
            "--output is replaced many times and must be a file; --json prints the document");
    }
    options.argv = command_line();
    options.git_commit = kGitCommit;
    options.terminal = isatty(STDERR_FILENO) == 1;
    const probe::Watched watched = probe::run_watched(
        [&](probe::Heartbeat& heartbeat) {
            return probe::run_probe(options, open_node, heartbeat);
        },
        std::chrono::seconds(30));
    if (watched.timed_out) {
        throw Error(
            ErrorKind::kTimedOut,
            fmt::format("probe: nothing was heard in phase '{}' within its limit; the measuring "
                        "process was killed, {} holds what it had",
                        watched.phase, options.output));
    }
    if (watched.exit_code != 0) throw ExitWith{watched.exit_code};
}

}  // namespace

void add_probe(CLI::App& app) {
    auto flags = std::make_shared<Flags>();
    probe::ProbeOptions& o = flags->probe;
    CLI::App* command = app.add_subcommand("probe", "Measure how stores leave this node's GPUs");
    command->add_option("-o,--output", o.output, "measurement document, saved as the run goes on")
        ->capture_default_str();
    command->add_flag("--quick", o.quick, "a coarse grid in under 10 s");
    command->add_flag("--loopback", o.loopback, "store to the GPU's own memory: one GPU, no link");
    command->add_flag("--litmus", o.litmus, "ordering tests instead of times");
    command->add_option("--trials", flags->trials, "messages per ordering test")
        ->capture_default_str();
    command->add_option("--bytes", flags->bytes, "bytes per SM and burst: 4K,1K:64K:x2,0:96K:+8K");
    command->add_option("--sms", flags->sms, "numbers of SMs that store");
    command->add_option("--warps", flags->warps, "storing warps per SM");
    command->add_option("--gaps", flags->gaps, "computation between bursts, SM cycles");
    command->add_option("--paths", flags->paths, "store paths: st16,bulk,st4,tensor,...");
    command->add_option("--filter", o.filters,
                        "only steps with KEY=VALUE[,KEY<=VALUE...]; several: any of them");
    command->add_option("--samples", o.samples, "timed rounds per configuration")
        ->check(CLI::Range(1, 1000));
    command->add_option("--compare", o.base, "earlier document; exit 1 if this node got slower");
    command->add_option("--measured", flags->measured,
                        "with --compare: take these measurements instead of measuring");
    command->add_option("--name", o.node_name, "name of the node in the document");
    command->add_flag("--json", o.json, "print the document instead of the summary");
    command->add_option("--hang-in", o.hang_in, "hang in this phase, to try the watchdog")
        ->group("");
    command->callback([flags] { run(*flags); });
}

}  // namespace xstage::cli
