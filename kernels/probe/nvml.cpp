#include "nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>

namespace xstage::probe {
namespace {

// The few declarations used here, as the library's stable ABI has them; its header need not be
// installed.
using Device = void*;
constexpr int kSuccess = 0;
constexpr unsigned kFieldSpeedCommon = 90;    // NVLINK_SPEED_MBPS_COMMON
constexpr unsigned kFieldLinkSpeed = 164;     // NVLINK_GET_SPEED, per link
constexpr unsigned kFieldDataSent = 138;      // NVLINK_THROUGHPUT_DATA_TX, KiB
constexpr unsigned kFieldDataReceived = 139;  // NVLINK_THROUGHPUT_DATA_RX, KiB
constexpr unsigned kAllLinks = ~0u;

struct FieldValue {
    unsigned field;
    unsigned scope;
    long long timestamp;
    long long latency_us;
    unsigned value_type;
    unsigned status;
    union {
        double d;
        unsigned u;
        unsigned long ul;
        unsigned long long ull;
        long long ll;
    } value;
};

struct ProcessInfo {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance;
    unsigned compute_instance;
};

template <class Function>
Function symbol(void* library, const char* name) {
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

bool read_field(void* library, Device device, unsigned field, unsigned scope, FieldValue& out) {
    auto get = symbol<int (*)(Device, int, FieldValue*)>(library, "nvmlDeviceGetFieldValues");
    if (get == nullptr || device == nullptr) return false;
    out = {};
    out.field = field;
    out.scope = scope;
    return get(device, 1, &out) == kSuccess && out.status == kSuccess;
}

}  // namespace

Nvml::Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    auto init = symbol<int (*)()>(library_, "nvmlInit_v2");
    if (library_ != nullptr && (init == nullptr || init() != kSuccess)) {
        dlclose(library_);
        library_ = nullptr;
    }
}

Nvml::~Nvml() {
    if (library_ == nullptr) return;
    if (auto shutdown = symbol<int (*)()>(library_, "nvmlShutdown")) shutdown();
    dlclose(library_);
}

void* Nvml::device(const std::string& uuid) const {
    if (const auto known = devices_.find(uuid); known != devices_.end()) return known->second;
    auto get = symbol<int (*)(const char*, Device*)>(library_, "nvmlDeviceGetHandleByUUID");
    Device device = nullptr;
    if (get == nullptr || get(uuid.c_str(), &device) != kSuccess) device = nullptr;
    return devices_[uuid] = device;
}

std::string Nvml::driver() const {
    auto get = symbol<int (*)(char*, unsigned)>(library_, "nvmlSystemGetDriverVersion");
    std::array<char, 96> text{};
    if (get == nullptr || get(text.data(), text.size()) != kSuccess) return {};
    return text.data();
}

Nvml::Links Nvml::links(const std::string& uuid) const {
    Links links;
    Device gpu = device(uuid);
    auto state = symbol<int (*)(Device, unsigned, unsigned*)>(library_, "nvmlDeviceGetNvLinkState");
    auto type = symbol<int (*)(Device, unsigned, unsigned*)>(library_,
                                                             "nvmlDeviceGetNvLinkRemoteDeviceType");
    if (gpu == nullptr || state == nullptr) return links;
    for (unsigned link = 0; link < 18; ++link) {
        unsigned active = 0;
        if (state(gpu, link, &active) != kSuccess || active == 0) continue;
        ++links.active;
        unsigned remote = 0;
        if (type != nullptr && type(gpu, link, &remote) == kSuccess && remote == 2) {
            links.to_switch = true;
        }
    }
    // Newest first; which one answers depends on the driver. MB/s of one link, all links being
    // alike.
    for (const unsigned field : {kFieldLinkSpeed, kFieldSpeedCommon}) {
        FieldValue speed;
        if (links.active > 0 && read_field(library_, gpu, field, 0, speed) && speed.value.u > 0) {
            // The raw rate carries a sixteenth of error correction: 26 562 is the 25 GB/s link.
            links.line_rate =
                links.active * static_cast<double>(speed.value.u) / 1000.0 * 16.0 / 17.0;
            break;
        }
    }
    return links;
}

ThrottleState Nvml::throttle(const std::string& uuid) const {
    ThrottleState state;
    Device gpu = device(uuid);
    using Get = int (*)(Device, unsigned long long*);
    auto get = symbol<Get>(library_, "nvmlDeviceGetCurrentClocksEventReasons");
    if (get == nullptr) get = symbol<Get>(library_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    unsigned long long bits = 0;
    if (gpu == nullptr || get == nullptr || get(gpu, &bits) != kSuccess) return state;
    state.known = true;
    // Idle and a user's own clock limit are no throttling.
    const std::pair<unsigned long long, const char*> reasons[] = {{0x4, "power cap"},
                                                                  {0x8, "hardware slowdown"},
                                                                  {0x20, "thermal (software)"},
                                                                  {0x40, "thermal (hardware)"},
                                                                  {0x80, "power brake"}};
    for (const auto& [bit, name] : reasons) {
        if ((bits & bit) == 0) continue;
        state.throttled = true;
        state.reason += state.reason.empty() ? name : fmt::format(", {}", name);
    }
    return state;
}

std::int64_t Nvml::counter(const std::string& uuid, unsigned field) const {
    FieldValue value;
    if (!read_field(library_, device(uuid), field, kAllLinks, value)) return -1;
    return static_cast<std::int64_t>(value.value.ull) * 1024;
}

std::int64_t Nvml::link_bytes_sent(const std::string& uuid) const {
    return counter(uuid, kFieldDataSent);
}

std::int64_t Nvml::link_bytes_received(const std::string& uuid) const {
    return counter(uuid, kFieldDataReceived);
}

bool Nvml::mig_enabled(const std::string& uuid) const {
    if (uuid.rfind("MIG-", 0) == 0) return true;
    auto get = symbol<int (*)(Device, unsigned*, unsigned*)>(library_, "nvmlDeviceGetMigMode");
    unsigned current = 0, pending = 0;
    Device gpu = device(uuid);
    return gpu != nullptr && get != nullptr && get(gpu, &current, &pending) == kSuccess &&
           current == 1;
}

int Nvml::other_processes(const std::string& uuid) const {
    auto get = symbol<int (*)(Device, unsigned*, ProcessInfo*)>(
        library_, "nvmlDeviceGetComputeRunningProcesses_v3");
    Device gpu = device(uuid);
    if (gpu == nullptr || get == nullptr) return -1;
    std::array<ProcessInfo, 64> processes{};
    unsigned count = processes.size();
    if (get(gpu, &count, processes.data()) != kSuccess) return -1;
    int others = 0;
    for (unsigned i = 0; i < count; ++i) {
        others += processes[i].pid != static_cast<unsigned>(getpid());
    }
    return others;
}

std::string Nvml::fabric_state(const std::string& uuid) const {
    // clusterUuid, status, cliqueId, state
    struct FabricInfo {
        unsigned char cluster[16];
        int status;
        unsigned clique;
        unsigned char state;
    };
    auto get = symbol<int (*)(Device, FabricInfo*)>(library_, "nvmlDeviceGetGpuFabricInfo");
    Device gpu = device(uuid);
    FabricInfo info{};
    if (gpu == nullptr || get == nullptr || get(gpu, &info) != kSuccess) return {};
    switch (info.state) {
        case 0:
            return "not supported";
        case 1:
            return "not started";
        case 2:
            return "in progress";
        default:
            return info.status == kSuccess ? "completed" : fmt::format("failed [{}]", info.status);
    }
}

}  // namespace xstage::probe
