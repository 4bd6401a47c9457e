#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "core/file.hpp"
#include "git_commit.hpp"
#include "ops/ulysses/bench.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

ulysses::BenchShape parse_shape(const std::string& text) {
    ulysses::BenchShape s{};
    int end = 0;
    if (std::sscanf(text.c_str(), "%ld,%d,%d%n", &s.rows, &s.heads, &s.dim, &end) != 3 ||
        end != static_cast<int>(text.size()) || s.rows < 1 || s.heads < 1 || s.dim < 2)
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("'{}' is not a shape: expected ROWS,HEADS,DIM such as 4096,40,128", text));
    return s;
}

}  // namespace

void add_bench(CLI::App& app) {
    struct Options {
        std::string backend = "process", output = "-";
        std::vector<std::string> shapes;
        std::int64_t longest = 1 << 30;
        ulysses::BenchOptions run;
    };
    auto o = std::make_shared<Options>();
    CLI::App* bench = app.add_subcommand("bench", "Recorded benchmarks on this node");
    bench->require_subcommand(1);
    add_bench_moe(*bench, app);
    CLI::App* command = bench->add_subcommand("ulysses",
                                              "Attention with its second all-to-all stitched, "
                                              "packed and by NCCL, against attention alone");
    command->add_option("--ranks", o->run.world, "ranks")->check(CLI::Range(1, 16));
    command
        ->add_option("--backend", o->backend,
                     "process: a GPU per rank; local: virtual ranks on one GPU")
        ->check(CLI::IsMember({"process", "local"}));
    command->add_option("--shape", o->shapes,
                        "ROWS,HEADS,DIM; several may be given (default: the table)");
    command->add_option("--rows-up-to", o->longest, "leave longer shapes of the table out");
    command->add_option("--repetitions", o->run.repetitions, "of each variant, in random order")
        ->check(CLI::Range(1, 10000));
    command->add_option("--attention", o->run.attention, "the kernel")
        ->check(CLI::IsMember({"cudnn", "xstage"}));
    command->add_option("--seed", o->run.seed, "of the order");
    command->add_option("--node", o->run.node, "name of this node, for the record");
    command->add_flag("!--no-nccl", o->run.nccl, "leave the NCCL baseline out");
    command->add_option("-o,--output", o->output, "document to write; - for standard output");
    command->callback([o, &app] {
        o->run.backend =
            o->backend == "local" ? fabric::Backend::kLocal : fabric::Backend::kProcess;
        for (const std::string& s : o->shapes) o->run.shapes.push_back(parse_shape(s));
        if (o->shapes.empty())
            for (const ulysses::BenchShape& s : ulysses::bench_shapes())
                if (s.rows <= o->longest) o->run.shapes.push_back(s);
        o->run.argv = {app.get_name(),
                       "bench",
                       "ulysses",
                       "--ranks",
                       std::to_string(o->run.world),
                       "--backend",
                       o->backend,
                       "--repetitions",
                       std::to_string(o->run.repetitions),
                       "--attention",
                       o->run.attention,
                       "--rows-up-to",
                       std::to_string(o->longest)};
        o->run.git_commit = kGitCommit;
        const ulysses::BenchReport report = ulysses::run_bench(o->run);
        core::write_file_atomic(o->output, report.document);
        if (!report.wrong.empty())
            throw Error(ErrorKind::kCheckFailed,
                        "results unlike those of the serial way:" + report.wrong);
    });
}

}  // namespace xstage::cli
