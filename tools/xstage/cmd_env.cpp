#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "core/json.hpp"
#include "git_commit.hpp"
#include "xstage/error.hpp"
#include "xstage/fabric.hpp"
#include "xstage/ulysses/cudnn.hpp"
#include "xstage/version.hpp"
#ifdef XSTAGE_HAVE_CUDA
#include "probe/node.hpp"
#endif

namespace xstage::cli {
namespace {

enum class State { kWorks, kMissing, kBroken };

constexpr const char* word(State state) {
    return state == State::kWorks ? "works" : state == State::kMissing ? "missing" : "broken";
}

struct Finding {
    std::string name;
    State state;
    std::string detail;  ///< what it is, or why not
};

/// Runs a part and files what it says, or why it cannot.
void look(std::vector<Finding>& findings, const std::string& name,
          const std::function<std::string()>& part) {
    try {
        findings.push_back({name, State::kWorks, part()});
    } catch (const Error& error) {
        const bool absent = error.kind() == ErrorKind::kUnsupported;
        findings.push_back({name, absent ? State::kMissing : State::kBroken, error.what()});
    }
}

std::string try_fabric(fabric::Backend backend, int world) {
    fabric::FabricOptions options;
    options.backend = backend;
    options.world = world;
    options.name = fmt::format("xstage-env-{}", ::getpid());
    if (backend == fabric::Backend::kLocal) options.devices.assign(world, 0);
    fabric::Fabric group(options);
    const fabric::SymmetricBuffer buffer(group, std::size_t{1} << 20);
    group.barrier();
    group.synchronize();
    return fmt::format("{} rank(s), pages of {} KiB", world, group.page_bytes() >> 10);
}

/// A library that is opened only when it is asked for.
std::string try_library(const char* name, const char* purpose) {
    void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        throw Error(
            ErrorKind::kUnsupported,
            fmt::format("{} cannot be opened: {} needs it in LD_LIBRARY_PATH", name, purpose));
    }
    ::dlclose(handle);
    return fmt::format("{} for {}", name, purpose);
}

#ifdef XSTAGE_HAVE_CUDA
std::string describe(const probe::NodeInfo& info) {
    std::string text =
        fmt::format("driver {}, runtime {}; {}", info.driver.empty() ? "unknown" : info.driver,
                    info.cuda, info.topology);
    if (info.line_rate > 0) text += fmt::format(", {:.0f} GB/s per direction", info.line_rate);
    for (const Gpu& gpu : info.gpus)
        text += fmt::format("\n{} ({}), {} SMs", gpu.name, gpu.uuid, gpu.sms);
    for (const std::string& warning : info.warnings) text += "\nwarning: " + warning;
    return text;
}

void look_at_gpus(std::vector<Finding>& findings) {
    probe::NodeOptions one;
    one.loopback = true;
    look(findings, "GPU", [&] { return describe(probe::open_cuda_node(one)->info()); });
    if (findings.back().state != State::kWorks) return;
    look(findings, "stores to peers", [&] {
        const auto node = probe::open_cuda_node({});
        std::string text = describe(node->info());
        for (const probe::PairCheck& pair : node->self_test()) {
            if (!pair.ok) throw Error(ErrorKind::kEnvironment, pair.reason);
            text += fmt::format("\n{} -> {}: every byte arrived", pair.from, pair.to);
        }
        return text;
    });
    look(findings, "virtual ranks", [] { return try_fabric(fabric::Backend::kLocal, 2); });
}
#else
void look_at_gpus(std::vector<Finding>& findings) {
    findings.push_back({"GPU", State::kMissing,
                        "built without CUDA: simulate, predict and the host backend remain"});
}
#endif

std::vector<Finding> look_around() {
    std::vector<Finding> findings;
    look_at_gpus(findings);
    look(findings, "host backend", [] { return try_fabric(fabric::Backend::kHost, 1); });
    look(findings, "descriptors", [] {
        rlimit limit{};
        ::getrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_cur < 256)
            throw Error(ErrorKind::kEnvironment,
                        fmt::format("ulimit -n is {}; ranks exchange memory in batches of 250",
                                    limit.rlim_cur));
        return fmt::format("ulimit -n is {}", limit.rlim_cur);
    });
    look(findings, "cuDNN", [] {
        if (const std::string why = ulysses::cudnn_missing(); !why.empty())
            throw Error(ErrorKind::kUnsupported, why);
        return std::string("attention over any output strides");
    });
    look(findings, "NCCL",
         [] { return try_library("libnccl.so.2", "the baseline of bench ulysses"); });
    return findings;
}

core::Json to_json(const std::vector<Finding>& findings) {
    core::Json out = {{"schema_version", 1}, {"kind", "xstage.env"}};
    out["provenance"] = {{"tool_version", kVersion},
                         {"git_commit", kGitCommit},
                         {"cpus", std::thread::hardware_concurrency()}};
    out["findings"] = core::Json::array();
    for (const Finding& f : findings) {
        out["findings"].push_back(
            {{"name", f.name}, {"state", word(f.state)}, {"detail", f.detail}});
    }
    return out;
}

void print_text(const std::vector<Finding>& findings) {
    fmt::print("xstage {} ({}), {} CPUs\n", kVersion, kGitCommit,
               std::thread::hardware_concurrency());
    for (const Finding& f : findings) {
        std::string detail = f.detail;
        for (std::size_t at = 0; (at = detail.find('\n', at)) != std::string::npos; at += 1)
            detail.insert(at + 1, 26, ' ');
        fmt::print("{:<16} {:<8} {}\n", f.name, word(f.state), detail);
    }
}

}  // namespace

void add_env(CLI::App& app) {
    auto json = std::make_shared<bool>(false);
    CLI::App* command =
        app.add_subcommand("env", "What this machine is, what works, what does not and why");
    command->add_flag("--json", *json, "a document instead of text");
    command->callback([json] {
        const std::vector<Finding> findings = look_around();
        if (*json)
            fmt::print("{}\n", core::dump_json(to_json(findings)));
        else
            print_text(findings);
        for (const Finding& f : findings)
            if (f.state == State::kBroken)
                throw ExitWith{static_cast<int>(ErrorKind::kEnvironment)};
    });
}

}  // namespace xstage::cli
