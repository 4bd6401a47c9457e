#include "fabric/nvshmem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "fabric/cuda_driver.hpp"
#include "fabric/group.hpp"
#include "fabric/nvshmem_kernels.hpp"
#include "fabric/nvshmem_library.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

/// NVSHMEM is one to a process: started once, by the first group or by the program itself, and
/// never ended, since ending it meets all ranks and there may be none left to meet.
struct World {
    std::mutex mutex;
    bool started = false;
    int device = -1;
    std::uint64_t next = 0;                        ///< allocations so far, the same on all ranks
    std::map<std::byte*, std::uint64_t> live;      ///< to its number
    std::map<std::uint64_t, std::byte*> released;  ///< here, but perhaps not yet elsewhere
};

World& world() {
    static World one;
    return one;
}

std::string numbers_of(const std::map<std::uint64_t, std::byte*>& released) {
    std::string text;
    for (const auto& [number, memory] : released) text += std::to_string(number) + " ";
    return text;
}

std::set<std::uint64_t> numbers_in(const std::string& text) {
    std::set<std::uint64_t> numbers;
    const char* at = text.c_str();
    char* end = nullptr;
    for (std::uint64_t n = std::strtoull(at, &end, 10); end != at;
         at = end, n = std::strtoull(at, &end, 10))
        numbers.insert(n);
    return numbers;
}

/// Allocating and freeing are collective in NVSHMEM and end in a barrier of its own, which knows no
/// time limit. So nothing is freed where a rank might not come: every allocation first hears what
/// the others have released, and all free what all have.
class NvshmemHeap final : public SymmetricHeap {
  public:
    NvshmemHeap(int device, std::vector<int> nodes, int rank, Agree agree)
        : device_(device), nodes_(std::move(nodes)), rank_(rank), agree_(std::move(agree)) {}

    std::byte* allocate(std::size_t bytes, const std::string& what) override {
        const DeviceScope scope(device_);
        const std::lock_guard lock(world().mutex);
        std::set<std::uint64_t> common;
        const std::vector<std::string> all =
            agree_(what + " heap", {}, numbers_of(world().released));
        for (std::size_t r = 0; r < all.size(); ++r) {
            const std::set<std::uint64_t> theirs = numbers_in(all[r]);
            if (r == 0) common = theirs;
            std::erase_if(common, [&](std::uint64_t n) { return !theirs.contains(n); });
        }
        if (!common.empty()) check_runtime(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        for (std::uint64_t n : common) {
            nvshmem_library().free(world().released.at(n));
            world().released.erase(n);
        }
        const std::size_t size = (bytes + 255) / 256 * 256;
        auto* const memory = static_cast<std::byte*>(nvshmem_library().align(256, size));
        const std::uint64_t number = world().next++;
        if (memory != nullptr) world().live[memory] = number;
        Outcome outcome;
        if (memory == nullptr)
            outcome = Outcome::failed(ErrorKind::kEnvironment,
                                      fmt::format("NVSHMEM's heap has no {} bytes left", size));
        else if (const cudaError_t error = cudaMemset(memory, 0, size); error != cudaSuccess)
            outcome = Outcome::failed(ErrorKind::kEnvironment, cudaGetErrorString(error));
        else if (cudaDeviceSynchronize() != cudaSuccess)
            outcome = Outcome::failed(ErrorKind::kEnvironment, "clearing NVSHMEM's memory failed");
        // The others may store only once it is clear here.
        agree_(what + " heap memory", outcome, "");
        return memory;
    }

    void release(std::byte* memory) noexcept override {
        const std::lock_guard lock(world().mutex);
        const auto at = world().live.find(memory);
        if (at == world().live.end()) return;
        try {
            world().released[at->second] = memory;
        } catch (const std::exception&) {  // it stays allocated
        }
        world().live.erase(at);
    }

    std::byte* at(std::byte* mine, int rank) const override {
        if (rank == rank_) return mine;
        if (nodes_[rank] != nodes_[rank_]) return nullptr;
        return static_cast<std::byte*>(nvshmem_library().ptr(mine, rank));
    }
    /// NVSHMEM names a place by its address here and a rank.
    std::byte* target(std::byte* mine, int) const override { return mine; }

  private:
    int device_;
    std::vector<int> nodes_;
    int rank_;
    Agree agree_;
};

void check_nvshmem(int status, const char* call) {
    if (status != 0)
        throw Error(ErrorKind::kEnvironment, fmt::format("{} failed with {}", call, status));
}

bool program_has_started() {
    const int status = nvshmem_library().init_status();
    return status >= NVSHMEM_STATUS_IS_INITIALIZED && status != NVSHMEM_STATUS_INVALID;
}

/// What rank 0 sends so that the others find it, as text.
std::string unique_id() {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    check_nvshmem(nvshmem_library().get_unique_id(&id), "nvshmemx_get_uniqueid");
    return {reinterpret_cast<const char*>(&id), sizeof id};
}

void start(const std::string& id_bytes, int rank, int ranks) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (id_bytes.size() != sizeof id)
        throw Error(ErrorKind::kEnvironment, "rank 0 sent no unique id of NVSHMEM");
    std::memcpy(&id, id_bytes.data(), sizeof id);
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    check_nvshmem(nvshmem_library().set_unique_id(rank, ranks, &id, &attributes),
                  "nvshmemx_set_attr_uniqueid_args");
    check_nvshmem(nvshmem_library().init(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes),
                  "nvshmemx_hostlib_init_attr");
}

}  // namespace

NvshmemParts open_nvshmem(const FabricOptions& options, const std::vector<int>& nodes, int device,
                          const Agree& agree) {
    // Multicast objects can put GPUs out of service that others share: only who asks gets them.
    // NVSHMEM reads its variables at its first call.
    ::setenv("NVSHMEM_DISABLE_NVLS", "1", 0);
    const DeviceScope scope(device);
    bool running = false;
    std::string payload;
    const Outcome loaded = attempt([&] {
        const NvshmemVersion host = nvshmem_library().version();
        check_versions({NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION,
                        NVSHMEM_VENDOR_PATCH_VERSION},
                       host, nvshmem_device_version());
        running = program_has_started();
        payload = pack_fields({host.text(), running ? "running" : "",
                               running || options.rank != 0 ? "" : unique_id()});
    });
    const std::vector<std::string> all = agree("nvshmem load", loaded, payload);
    // All ranks see the same and so throw the same.
    const std::vector<std::string> first = unpack_fields(all.at(0));
    for (std::size_t r = 1; r < all.size(); ++r) {
        const std::vector<std::string> fields = unpack_fields(all[r]);
        if (fields.at(0) != first.at(0))
            throw Error(
                ErrorKind::kEnvironment,
                fmt::format("rank {} has NVSHMEM {}, rank 0 has {}", r, fields[0], first[0]));
        if (fields.at(1) != first.at(1))
            throw Error(ErrorKind::kEnvironment,
                        fmt::format("NVSHMEM is running already on rank {} alone",
                                    first.at(1).empty() ? r : 0));
    }
    NvshmemParts parts;
    const Outcome started = attempt([&] {
        const std::lock_guard lock(world().mutex);
        if (!running) start(first.at(2), options.rank, options.world);
        const int rank = nvshmem_library().my_pe(), ranks = nvshmem_library().n_pes();
        if (rank != options.rank || ranks != options.world)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("NVSHMEM runs here as rank {} of {}, and a group of it is all "
                                    "of these, not rank {} of {}",
                                    rank, ranks, options.rank, options.world));
        if (world().started && world().device != device)
            throw Error(ErrorKind::kBadInput, fmt::format("NVSHMEM runs here on device {}, not {}",
                                                          world().device, device));
        if (!world().started)
            check_nvshmem(nvshmem_library().init_device_code(
                              reinterpret_cast<CUlibrary>(nvshmem_device_code())),
                          "nvshmemx_culibrary_init");
        world().started = true;
        world().device = device;
        parts.kernels = make_nvshmem_kernels();
        parts.heap = std::make_shared<NvshmemHeap>(device, nodes, options.rank, agree);
    });
    agree("nvshmem start", started, "");
    return parts;
}

}  // namespace xstage::fabric
