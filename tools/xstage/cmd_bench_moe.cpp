#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "core/file.hpp"
#include "git_commit.hpp"
#include "ops/moe/bench.hpp"
#include "xstage/error.hpp"

namespace xstage::cli {
namespace {

struct Options {
    std::string output = "-", store = "st16", backend = "process";
    std::vector<std::string> types{"fp8", "bf16"}, shapes, routings{"balanced"};
    std::vector<std::string> orders{"wave:1",     "wave:2",           "wave:4",
                                    "wave:8",     "wave:all",         "lead:16",
                                    "lead:32/16", "alternate+264/16", "ratio+264/16",
                                    "wave:all*2", "alternate+132/8*2"};
    moe::BenchOptions run;
};

moe::BenchShape shape_of(const std::string& text) {
    for (const moe::BenchShape& s : moe::bench_shapes())
        if (s.name == text) return s;
    moe::BenchShape s{text, 0, 0, 0, 0};
    int end = 0;
    if (std::sscanf(text.c_str(), "%d,%d,%d,%d%n", &s.hidden, &s.intermediate, &s.experts, &s.top_k,
                    &end) != 4 ||
        end != static_cast<int>(text.size())) {
        std::string names;
        for (const moe::BenchShape& known : moe::bench_shapes()) names += known.name + ", ";
        throw Error(ErrorKind::kBadInput,
                    fmt::format("'{}' is not a shape: {}or HIDDEN,INTERMEDIATE,EXPERTS,TOP_K", text,
                                names));
    }
    return s;
}

void run(Options& o, const std::string& program) {
    for (const std::string& t : o.types)
        o.run.types.push_back(t == "fp8" ? moe::Type::kFp8 : moe::Type::kBf16);
    for (const std::string& s : o.shapes) o.run.shapes.push_back(shape_of(s));
    if (o.shapes.empty()) o.run.shapes = moe::bench_shapes();
    for (const std::string& s : o.orders) o.run.orders.push_back(moe::parse_order(s));
    for (const std::string& name : o.routings)
        for (const moe::Routing r : moe::kRoutings)
            if (moe::name_of(r) == name) o.run.routings.push_back(r);
    for (const moe::Routing r : o.run.routings)
        if (o.run.world == 1 && moe::needs_peers(r))
            throw Error(
                ErrorKind::kBadInput,
                fmt::format("routing {} needs at least two ranks: --ranks", moe::name_of(r)));
    o.run.backend = o.backend == "local" ? fabric::Backend::kLocal : fabric::Backend::kProcess;
    o.run.store = o.store == "bulk" ? moe::StorePath::kBulk : moe::StorePath::kSt16;
    o.run.argv = {program,
                  "bench",
                  "moe",
                  "--ranks",
                  std::to_string(o.run.world),
                  "--backend",
                  o.backend,
                  "--types",
                  fmt::format("{}", fmt::join(o.types, ",")),
                  "--orders",
                  fmt::format("{}", fmt::join(o.orders, ",")),
                  "--tokens",
                  fmt::format("{}", fmt::join(o.run.tokens, ",")),
                  "--slices",
                  fmt::format("{}", fmt::join(o.run.slices, ",")),
                  "--routing",
                  fmt::format("{}", fmt::join(o.routings, ",")),
                  "--store",
                  o.store,
                  "--repetitions",
                  std::to_string(o.run.repetitions)};
    o.run.git_commit = kGitCommit;
    for (const std::string& shape : o.shapes)
        o.run.argv.insert(o.run.argv.end(), {"--shape", shape});
    if (o.run.shared) o.run.argv.push_back("--shared-expert");
    if (o.run.stamps) o.run.argv.push_back("--stamps");
    const moe::BenchReport report = moe::run_bench(o.run);
    core::write_file_atomic(o.output, report.document);
    if (!report.wrong.empty())
        throw Error(ErrorKind::kCheckFailed, "orders give different results:" + report.wrong);
}

}  // namespace

void add_bench_moe(CLI::App& bench, const CLI::App& app) {
    auto o = std::make_shared<Options>();
    o->run.tokens = {128, 512, 1024, 2048, 4096, 8192};
    o->run.slices = {2, 8};
    CLI::App* command = bench.add_subcommand("moe", "A MoE layer under each order of its tiles");
    command->add_option("--ranks", o->run.world, "ranks")->check(CLI::Range(1, 16));
    command
        ->add_option("--backend", o->backend,
                     "process: a GPU per rank; local: virtual ranks on one GPU")
        ->check(CLI::IsMember({"process", "local"}));
    command->add_option("--types", o->types, "fp8, bf16")
        ->delimiter(',')
        ->check(CLI::IsMember({"fp8", "bf16"}));
    command->add_option("--shape", o->shapes,
                        "a name of the table or HIDDEN,INTERMEDIATE,EXPERTS,TOP_K; several may be "
                        "given (default: the table)");
    command->add_option("--tokens", o->run.tokens, "tokens of each rank's call")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 20));
    command
        ->add_option("--slices", o->run.slices,
                     "experts of a rank: 1 all of the shape's, 2 half of them, 8 an eighth")
        ->delimiter(',')
        ->check(CLI::Range(1, 64));
    command
        ->add_option("--orders", o->orders,
                     "wave:N, wave:all, alternate, lead:N, ratio; then perhaps +SLACK, /BAND, *2")
        ->delimiter(',');
    command
        ->add_option("--routing", o->routings,
                     "balanced; hot: a tenth of the routes to one expert; away: 7/8 of them to "
                     "other ranks; home: none; rank0: 80% to rank 0; masked: 30% of the slots none")
        ->delimiter(',')
        ->check(CLI::IsMember({"balanced", "hot", "away", "home", "rank0", "masked"}));
    command->add_flag("--shared-expert", o->run.shared, "one more expert, which all tokens go to");
    command->add_flag("--stamps", o->run.stamps,
                      "record how long Linear-2's bursts of stores take to issue");
    command->add_option("--store", o->store, "how Linear-2 rows are stored: st16, bulk")
        ->check(CLI::IsMember({"st16", "bulk"}));
    command->add_option("--repetitions", o->run.repetitions, "of each order, in random turn")
        ->check(CLI::Range(1, 10000));
    command->add_option("--seconds", o->run.seconds, "start no new configuration after this long");
    command->add_option("--seed", o->run.seed, "of the routing and of the turns");
    command->add_option("--node", o->run.node, "name of this node, for the record");
    command->add_option("-o,--output", o->output, "document to write; - for standard output");
    command->callback([o, &app] { run(*o, app.get_name()); });
}

}  // namespace xstage::cli
