#include "cuda_node.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <thread>

#include "xstage/device/wait_report.hpp"

namespace xstage::probe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kHostBudget = std::chrono::seconds(20);

std::string uuid_text(const cudaUUID_t& uuid) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

const char* place_name(std::uint32_t place) {
    switch (static_cast<device::WaitPlace>(place)) {
        case device::WaitPlace::kStartLine:
            return "the start line: missing CTA";
        case device::WaitPlace::kFlag:
            return "the sender's flag, by the reader: missing rank or channel";
        case device::WaitPlace::kEcho:
            return "the reader's answer: missing rank";
        case device::WaitPlace::kChecked:
            return "the reader's check: missing rank";
        case device::WaitPlace::kCredit:
            return "a free message slot: missing channel";
        case device::WaitPlace::kStop:
            return "the stop of the background stores: missing rank";
        case device::WaitPlace::kNone:
            break;
    }
    return "nothing";
}

}  // namespace

CudaNode::CudaNode(const NodeOptions& options) : options_(options) {
    const cudaError_t error = cudaGetDeviceCount(&device_count_);
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || device_count_ == 0) {
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("no usable GPU: {}", cudaGetErrorString(error)));
    }
    XSTAGE_CUDA_CHECK(error);
    if (!options.loopback && device_count_ < 2) {
        throw Error(
            ErrorKind::kUnsupported,
            "stores to a peer need two GPUs and this machine shows one; --loopback measures "
            "stores to the GPU's own memory");
    }
    for (int device = 0; device < device_count_; ++device) {
        cudaDeviceProp properties{};
        XSTAGE_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
        if (properties.major < 9) {
            throw Error(ErrorKind::kUnsupported,
                        fmt::format("GPU {} ({}) has compute capability {}.{}; 9.0 is needed",
                                    device, properties.name, properties.major, properties.minor));
        }
        if (!options.loopback && nvml_.mig_enabled(uuid_text(properties.uuid))) {
            throw Error(
                ErrorKind::kUnsupported,
                fmt::format("GPU {} is partitioned (MIG); a partition has no peer access", device));
        }
    }
}

void CudaNode::enable_peer(int device, int peer) {
    if (device == peer || !enabled_.insert({device, peer}).second) return;
    const OnDevice on(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();  // another library of this process did it
        return;
    }
    XSTAGE_CUDA_CHECK(error);
}

NodeInfo CudaNode::info() const {
    NodeInfo info;
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    info.hostname = host.data();
    info.driver = nvml_.driver();
    int runtime = 0;
    XSTAGE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    info.cuda = fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
    const int used = options_.loopback ? 1 : device_count_;
    for (int device = 0; device < used; ++device) {
        cudaDeviceProp properties{};
        XSTAGE_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
        int clock_khz = 0;
        XSTAGE_CUDA_CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
        Gpu gpu;
        gpu.name = properties.name;
        gpu.uuid = uuid_text(properties.uuid);
        gpu.sms = properties.multiProcessorCount;
        gpu.max_clock = GigaHertz{clock_khz / 1e6};
        info.gpus.push_back(gpu);
        if (const int others = nvml_.other_processes(gpu.uuid); others > 0) {
            info.warnings.push_back(fmt::format(
                "GPU {} is busy: {} other process(es) have a context on it", device, others));
        }
        const std::string fabric = nvml_.fabric_state(gpu.uuid);
        if (fabric == "in progress" || fabric.rfind("failed", 0) == 0) {
            info.warnings.push_back(fmt::format("GPU {}: fabric registration {}", device, fabric));
        }
    }
    const Nvml::Links links = nvml_.links(info.gpus.front().uuid);
    info.line_rate = links.line_rate;
    if (links.active > 0) {
        info.topology = fmt::format("{} GPU(s), {} NVLinks each, to {}", device_count_,
                                    links.active, links.to_switch ? "a switch" : "the peers");
    } else {
        info.topology = fmt::format("{} GPU(s), no active NVLink visible", device_count_);
    }
    if (!nvml_.loaded())
        info.warnings.push_back("no management library: topology and throttling unknown");
    return info;
}

void CudaNode::prepare_kernels(int device) {
    const OnDevice on(device);
    // Lazy loading would put a module load, and with it a wait for the whole device, into a sample.
    XSTAGE_CUDA_CHECK(prepare_store_kernels(exclusive_shared_));
    XSTAGE_CUDA_CHECK(prepare_visible_kernels(exclusive_shared_));
    XSTAGE_CUDA_CHECK(prepare_litmus_kernels());
    XSTAGE_CUDA_CHECK(prepare_plain_kernels());
}

void CudaNode::finish(int device, cudaStream_t stream, const char* what) {
    const OnDevice on(device);
    const auto end = Clock::now() + kHostBudget;
    for (;;) {
        const cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaSuccess) return;
        if (state != cudaErrorNotReady) XSTAGE_CUDA_CHECK(state);
        if (Clock::now() > end) {
            throw Error(ErrorKind::kTimedOut, fmt::format("{}: GPU {} did not finish within {} s",
                                                          what, device, kHostBudget.count()));
        }
    }
}

void CudaNode::throw_if_waited_out(const char* what) {
    // Both ends: who waited in vain at one end is mostly explained by the other.
    std::string message;
    for (const auto& [report, device] :
         {std::pair{report_.get(), from_}, std::pair{reader_report_.get(), to_}}) {
        device::WaitReport found{};
        const OnDevice on(device);
        XSTAGE_CUDA_CHECK(cudaMemcpy(&found, report, sizeof found, cudaMemcpyDeviceToHost));
        if (found.place == 0) continue;
        XSTAGE_CUDA_CHECK(cudaMemset(report, 0, sizeof found));
        message += fmt::format("{}CTA {} of GPU {} waited in vain for {} {} (round {})",
                               message.empty() ? "" : "; ", found.waiter, device,
                               place_name(found.place), found.missing, found.round);
    }
    if (!message.empty()) {
        throw Error(ErrorKind::kTimedOut, fmt::format("{}: {}", what, message));
    }
}

PairCheck CudaNode::check_pair(int from, int to) {
    PairCheck check{.from = from, .to = to, .ok = false, .reason = {}};
    constexpr std::uint64_t kBytes = std::uint64_t{16} << 20;
    try {
        if (from != to) {
            int can = 0;
            XSTAGE_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, from, to));
            if (can == 0) {
                check.reason = "the driver reports no peer access";
                return check;
            }
            enable_peer(from, to);
        }
        DeviceArray<char> target(to, kBytes);
        DeviceArray<unsigned long long> wrong(to, 1);
        const Stream sender(from);
        const Stream reader(to);
        const std::uint32_t seed = next_seed();
        {
            const OnDevice on(from);
            XSTAGE_CUDA_CHECK(launch_fill(target.get(), kBytes, seed, 64, 256, 1, sender.get()));
        }
        finish(from, sender.get(), "self-test, storing");
        unsigned long long count = 0;
        {
            const OnDevice on(to);
            XSTAGE_CUDA_CHECK(
                launch_check(target.get(), kBytes, 4096, seed, wrong.get(), reader.get()));
            finish(to, reader.get(), "self-test, reading");
            XSTAGE_CUDA_CHECK(
                cudaMemcpy(&count, wrong.get(), sizeof count, cudaMemcpyDeviceToHost));
        }
        check.ok = count == 0;
        if (count != 0) {
            check.reason = fmt::format("{} of {} stored words did not arrive", count, kBytes / 4);
        }
    } catch (const Error& error) {
        check.reason = error.what();
    }
    return check;
}

std::vector<PairCheck> CudaNode::self_test() {
    if (options_.loopback) return {check_pair(0, 0)};
    std::vector<PairCheck> checks;
    for (int from = 0; from < device_count_; ++from) {
        for (int to = 0; to < device_count_; ++to) {
            if (from != to) checks.push_back(check_pair(from, to));
        }
    }
    return checks;
}

void CudaNode::use_pair(int from, int to) {
    from_ = from;
    to_ = to;
    XSTAGE_CUDA_CHECK(cudaSetDevice(from));
    cudaDeviceProp properties{};
    XSTAGE_CUDA_CHECK(cudaGetDeviceProperties(&properties, from));
    uuid_ = uuid_text(properties.uuid);
    sms_ = std::min(properties.multiProcessorCount, kMaxSms);
    int clock_khz = 0;
    XSTAGE_CUDA_CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, from));
    clock_ghz_ = clock_khz / 1e6;
    // More than half of an SM's shared memory: a second CTA does not fit.
    exclusive_shared_ = static_cast<int>(properties.sharedMemPerMultiprocessor / 2 + 1024);
    if (from != to) {
        enable_peer(from, to);
        enable_peer(to, from);
    }
    prepare_kernels(from);
    if (from != to) prepare_kernels(to);

    stream_ = Stream(from);
    reader_stream_ = Stream(to);
    control_ = Stream(to);
    windows_.clear();
    window_device_.clear();
    windows_.emplace_back(to, kWindowBytes);
    window_device_.push_back(to);
    for (int peer = 0; !options_.loopback && peer < device_count_; ++peer) {
        if (peer == from || peer == to || static_cast<int>(windows_.size()) == kMaxDestinations) {
            continue;
        }
        enable_peer(from, peer);
        windows_.emplace_back(peer, kWindowBytes);
        window_device_.push_back(peer);
    }
    local_window_ = DeviceArray<char>(from, kWindowBytes);
    if (from != to) back_window_ = DeviceArray<char>(from, kBackBytes);
    beside_ = DeviceArray<std::uint8_t>(from, kBesideBytes);
    wrong_ = DeviceArray<unsigned long long>(to, 1);
    wrong_local_ = DeviceArray<unsigned long long>(from, 1);
    report_ = DeviceArray<device::WaitReport>(from, 1);
    reader_report_ = DeviceArray<device::WaitReport>(to, 1);
}

void CudaNode::warm_up(double milliseconds) {
    const auto ns = static_cast<std::uint64_t>(milliseconds * 1e6);
    for (const int device : {from_, to_}) {
        const OnDevice on(device);
        const cudaStream_t stream = device == from_ ? stream_.get() : reader_stream_.get();
        XSTAGE_CUDA_CHECK(launch_spin(ns, sms_, stream));
    }
    finish(from_, stream_.get(), "warm-up");
    finish(to_, reader_stream_.get(), "warm-up");
}

ThrottleState CudaNode::throttle() {
    return nvml_.throttle(uuid_);
}

std::vector<std::vector<int>> CudaNode::sm_groups() {
    // Every cluster lies within one GPC. Clusters of several launches overlap, so their union finds
    // the GPCs; one launch alone would leave each GPC in pieces.
    std::vector<int> parent(kMaxSms);
    for (int i = 0; i < kMaxSms; ++i) parent[i] = i;
    auto root = [&](int i) {
        while (parent[i] != i) i = parent[i] = parent[parent[i]];
        return i;
    };
    std::vector<bool> seen(kMaxSms, false);
    DeviceArray<std::uint32_t> map(from_, 1024);
    const OnDevice on(from_);
    for (const int cluster : {16, 8, 7, 6, 5, 4, 3, 2}) {
        const int ctas = sms_ / cluster * cluster;
        for (int repeat = 0; repeat < 4; ++repeat) {
            if (launch_cluster_map(map.get(), ctas, cluster, stream_.get()) != cudaSuccess) {
                cudaGetLastError();  // this size does not fit this GPU
                break;
            }
            finish(from_, stream_.get(), "cluster map");
            std::vector<std::uint32_t> sm(ctas);
            XSTAGE_CUDA_CHECK(
                cudaMemcpy(sm.data(), map.get(), ctas * sizeof sm[0], cudaMemcpyDeviceToHost));
            for (int cta = 0; cta < ctas; ++cta) {
                const int id = static_cast<int>(sm[cta]) % kMaxSms;
                seen[id] = true;
                parent[root(id)] = root(static_cast<int>(sm[cta / cluster * cluster]) % kMaxSms);
            }
        }
    }
    std::map<int, std::vector<int>> groups;
    for (int id = 0; id < kMaxSms; ++id) {
        if (seen[id]) groups[root(id)].push_back(id);
    }
    std::vector<std::vector<int>> out;
    for (auto& [first, members] : groups) out.push_back(std::move(members));
    std::sort(out.begin(), out.end());
    return out;
}

std::unique_ptr<Node> open_cuda_node(const NodeOptions& options) {
    return std::make_unique<CudaNode>(options);
}

}  // namespace xstage::probe
