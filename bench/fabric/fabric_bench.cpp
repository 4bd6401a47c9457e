// Times the fabric on this node: the barrier, by events around a replayed graph, and the creation
// of a symmetric buffer of 1 GB on every rank. One JSON document on stdout or in --out FILE.
//
//   fabric_bench --node NAME [--commit HASH] [--out FILE]

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/fabric.hpp"
#include "xstage/version.hpp"

namespace {

using Json = nlohmann::ordered_json;
using namespace xstage::fabric;

constexpr int kCallsPerGraph = 200;
constexpr int kSamples = 101;
constexpr std::size_t kGigabyte = 1'000'000'000;

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

Json percentiles(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    auto at = [&](double q) { return values[static_cast<std::size_t>(q * (values.size() - 1))]; };
    return {{"p5", at(0.05)},
            {"p50", at(0.5)},
            {"p95", at(0.95)},
            {"max", values.back()},
            {"samples", values.size()}};
}

/// A graph of many calls of `work`, replayed; microseconds per call.
Json time_in_graph(Fabric& fabric, int device, const std::function<void(int, cudaStream_t)>& work) {
    check(cudaSetDevice(device), "cudaSetDevice");
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaEvent_t start = nullptr;
    cudaEvent_t stop = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&stop), "event");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < kCallsPerGraph; ++i) work(i, stream);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    std::vector<double> us;
    for (int i = 0; i < kSamples + 5; ++i) {
        check(cudaEventRecord(start, stream), "record");
        check(cudaGraphLaunch(exec, stream), "launch");
        check(cudaEventRecord(stop, stream), "record");
        fabric.synchronize(stream);
        float ms = 0;
        check(cudaEventElapsedTime(&ms, start, stop), "elapsed");
        if (i >= 5) us.push_back(ms * 1000.0 / kCallsPerGraph);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return percentiles(us);
}

Json time_barriers(Fabric& fabric, int device) {
    return time_in_graph(fabric, device, [&](int, cudaStream_t stream) { fabric.barrier(stream); });
}

/// begin and exchange on two buffers in turn with nothing stored between: what the signals cost a
/// call.
Json time_calls(Fabric& fabric, int device) {
    StitchedOptions options;
    options.rows.assign(static_cast<std::size_t>(fabric.world()), 8);
    options.row_bytes = 4096;
    StitchedTensor tensor(fabric, options);
    const Json row = time_in_graph(fabric, device, [&](int i, cudaStream_t stream) {
        tensor.begin(i % 2, stream);
        tensor.exchange(i % 2, stream);
    });
    fabric.barrier();
    fabric.synchronize();
    return row;
}

/// Milliseconds from the call to the buffer, with everyone at the start line.
Json time_creation(Fabric& fabric) {
    std::vector<double> ms;
    for (int i = 0; i < 9; ++i) {
        fabric.agree("start");
        const auto start = std::chrono::steady_clock::now();
        const SymmetricBuffer buffer(fabric, kGigabyte);
        ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
    }
    return percentiles(ms);
}

FabricOptions options_of(Backend backend, const std::string& name, int rank, int world) {
    FabricOptions options;
    options.backend = backend;
    options.name = name;
    options.rank = rank;
    options.world = world;
    options.setup_timeout = options.wait_timeout = std::chrono::seconds(20);
    return options;
}

Json local_rows(int world) {
    FabricOptions options = options_of(Backend::kLocal, "", 0, world);
    options.devices.assign(world, 0);
    Fabric fabric(options);
    Json row{{"backend", "local"}, {"ranks", world}, {"gpus", 1}};
    row["barrier_us"] = time_barriers(fabric, 0);
    row["call_us"] = time_calls(fabric, 0);
    row["create_1gb_ms"] = time_creation(fabric);
    return row;
}

Json process_rows(const std::string& name, int rank, const std::vector<int>& devices) {
    const int world = static_cast<int>(devices.size());
    const bool shared = devices[0] == devices[1];
    FabricOptions options = options_of(Backend::kProcess, name, rank, world);
    options.devices = {devices[rank]};
    Fabric fabric(options);
    Json row{
        {"backend", "process"}, {"ranks", world}, {"gpus", shared ? 1 : world}, {"rank", rank}};
    if (!shared) {  // processes that take turns on one GPU say nothing about a barrier
        row["barrier_us"] = time_barriers(fabric, devices[rank]);
        row["call_us"] = time_calls(fabric, devices[rank]);
    }
    row["create_1gb_ms"] = time_creation(fabric);
    // Nobody leaves while the other is still measuring.
    fabric.agree("done");
    return row;
}

/// Runs a measurement in a child, since this process must not hold a context of its own when it
/// forks.
std::vector<Json> in_children(int count, const std::function<Json(int)>& measure) {
    std::vector<std::pair<pid_t, int>> children;
    for (int r = 0; r < count; ++r) {
        int ends[2];
        if (::pipe(ends) != 0) throw std::runtime_error("pipe");
        const pid_t pid = ::fork();
        if (pid == 0) {
            std::string text;
            try {
                text = measure(r).dump();
            } catch (const std::exception& e) {
                text = Json{{"error", e.what()}}.dump();
            }
            const bool written = ::write(ends[1], text.data(), text.size()) >= 0;
            ::_exit(written ? 0 : 1);
        }
        ::close(ends[1]);
        children.emplace_back(pid, ends[0]);
    }
    std::vector<Json> results;
    for (const auto& [pid, pipe] : children) {
        std::string text;
        char buffer[4096];
        for (ssize_t n; (n = ::read(pipe, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
        ::close(pipe);
        ::waitpid(pid, nullptr, 0);
        results.push_back(text.empty() ? Json{{"error", "the measuring process died"}}
                                       : Json::parse(text));
    }
    return results;
}

Json describe_node() {
    Json gpus = Json::array();
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp prop{};
        check(cudaGetDeviceProperties(&prop, i), "cudaGetDeviceProperties");
        int khz = 0;
        check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, i), "clock");
        gpus.push_back(
            {{"name", prop.name}, {"sms", prop.multiProcessorCount}, {"max_clock_ghz", khz / 1e6}});
    }
    int driver = 0;
    int runtime = 0;
    check(cudaDriverGetVersion(&driver), "driver version");
    check(cudaRuntimeGetVersion(&runtime), "runtime version");
    std::string kernel_driver;
    std::getline(std::ifstream("/proc/driver/nvidia/version"), kernel_driver);
    return {{"gpus", gpus},
            {"cuda_driver", driver},
            {"cuda_runtime", runtime},
            {"driver", kernel_driver}};
}

std::string now() {
    const std::time_t t = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&t));
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    std::string node = "unnamed";
    std::string commit = "unknown";
    std::string out;
    std::vector<std::string> arguments(argv, argv + argc);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (arguments[i] == "--node")
            node = arguments[i + 1];
        else if (arguments[i] == "--commit")
            commit = arguments[i + 1];
        else if (arguments[i] == "--out")
            out = arguments[i + 1];
        else
            return std::fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    try {
        const Json info = in_children(1, [](int) { return describe_node(); }).front();
        if (info.contains("error")) {
            std::fprintf(stderr, "%s\n", info["error"].get<std::string>().c_str());
            return 3;
        }
        Json rows = Json::array();
        for (int world : {2, 4, 8})
            rows.push_back(in_children(1, [&](int) { return local_rows(world); }).front());
        std::vector<std::vector<int>> placements{{0, 0}};
        for (int world = 2; world <= static_cast<int>(info["gpus"].size()); world *= 2) {
            placements.emplace_back(world);
            std::iota(placements.back().begin(), placements.back().end(), 0);
        }
        for (const auto& devices : placements) {
            const int world = static_cast<int>(devices.size());
            const std::string name = "bench-" + std::to_string(::getpid()) + "-" +
                                     std::to_string(devices[1]) + "-" + std::to_string(world);
            for (const Json& row :
                 in_children(world, [&](int rank) { return process_rows(name, rank, devices); }))
                rows.push_back(row);
        }
        const Json document{{"schema_version", 1},
                            {"kind", "fabric_bench"},
                            {"provenance",
                             {{"node", node},
                              {"tool_version", xstage::kVersion},
                              {"git_commit", commit},
                              {"argv", arguments},
                              {"date", now()},
                              {"machine", info}}},
                            {"calls_per_graph", kCallsPerGraph},
                            {"bytes_created", kGigabyte},
                            {"rows", rows}};
        if (out.empty())
            std::printf("%s\n", document.dump(2).c_str());
        else
            std::ofstream(out) << document.dump(2) << '\n';
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
