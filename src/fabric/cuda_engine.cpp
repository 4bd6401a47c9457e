// Launches the protocol's kernels for this process's ranks, device by device.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "fabric/cuda_backend.hpp"
#include "fabric/cuda_driver.hpp"
#include "fabric/cuda_kernels.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

using kernels::PoisonTable;
using kernels::ProgramId;

std::uint64_t read_pinned(const std::uint64_t& word) {
    return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word))
        .load(std::memory_order_acquire);
}

/// The ranks of one device and what their kernels need.
class DeviceRanks {
  public:
    DeviceRanks(const FabricOptions& options, int device, const std::vector<int>& ranks,
                const Blocks& blocks, FabricKernels& kernels)
        : device_(device), kernels_(kernels) {
        const DeviceScope scope(device);
        for (int p = 0; p < options.world; ++p) group_.block[p] = blocks[p];
        for (std::size_t i = 0; i < ranks.size(); ++i)
            group_.ranks[i] = static_cast<std::uint8_t>(ranks[i]);
        group_.world = static_cast<std::uint8_t>(options.world);
        group_.local = static_cast<std::uint8_t>(ranks.size());
        group_.timeout_ns = static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(options.wait_timeout).count());
        group_.trap = options.trap_on_timeout;
        check_runtime(kernels_.preload(), "loading the fabric's kernels");
        try {
            allocate();
        } catch (...) {
            free();
            throw;
        }
    }
    ~DeviceRanks() { free(); }
    DeviceRanks(const DeviceRanks&) = delete;
    DeviceRanks& operator=(const DeviceRanks&) = delete;

    const device::FabricGroup& group() const { return group_; }

    void launch(ProgramId program, const CallShape& call, const CallShape& next,
                const std::vector<Poison>& outputs, void* stream) const {
        PoisonTable poison;
        for (int i = 0; i < group_.local; ++i)
            for (const Poison& p : outputs)
                if (p.rank == group_.ranks[i]) {
                    poison.data[i] = p.data;
                    poison.bytes[i] = p.bytes;
                }
        const DeviceScope scope(device_);
        check_runtime(
            kernels_.launch(program, group_, call, next, poison, static_cast<cudaStream_t>(stream)),
            "launching a fabric kernel");
    }

    void send(const CallShape& call, const PutTable& table, void* stream) const {
        const DeviceScope scope(device_);
        check_runtime(kernels_.send(group_, call, table, static_cast<cudaStream_t>(stream)),
                      "launching the kernel that sends rows");
    }
    void receive(const CallShape& call, const PutTable& table, void* stream) const {
        const DeviceScope scope(device_);
        check_runtime(kernels_.receive(group_, call, table, static_cast<cudaStream_t>(stream)),
                      "launching the kernel that receives rows");
    }
    void put(int to, std::byte* target, bool mapped, const std::byte* source, std::size_t bytes,
             void* stream) const {
        const DeviceScope scope(device_);
        const auto on = static_cast<cudaStream_t>(stream);
        check_runtime(mapped ? cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, on)
                             : kernels_.put(to, target, source, bytes, on),
                      "putting memory");
    }
    bool has(int rank) const {
        return std::find(group_.ranks, group_.ranks + group_.local, rank) !=
               group_.ranks + group_.local;
    }

    void reset_channels(int first, int count) const {
        const DeviceScope scope(device_);
        const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::uint64_t);
        for (int i = 0; i < group_.local; ++i) {
            for (Lane& lane : group_.block[group_.ranks[i]]->from)
                for (std::uint64_t* words : {&lane.data[first], &lane.credit[first]})
                    check_runtime(cudaMemset(words, 0, bytes), "cudaMemset");
            for (std::uint64_t* words :
                 {&group_.state[i].sent[first], &group_.state[i].received[first]})
                check_runtime(cudaMemset(words, 0, bytes), "cudaMemset");
        }
        check_runtime(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    void self_test() const {
        const DeviceScope scope(device_);
        check_runtime(kernels_.self_test(group_, nullptr), "launching the self-test");
        check_runtime(cudaStreamSynchronize(nullptr), "running the self-test");
    }

    void missing_self_tests(std::vector<int>& missing) const {
        const DeviceScope scope(device_);
        for (int i = 0; i < group_.local; ++i)
            for (int p = 0; p < group_.world; ++p) {
                if (p == group_.ranks[i]) continue;
                std::uint64_t word = 0;
                check_runtime(
                    cudaMemcpy(&word, &group_.block[group_.ranks[i]]->from[p].self_test[0],
                               sizeof word, cudaMemcpyDeviceToHost),
                    "reading the self-test");
                if (word != self_test_pattern(p, group_.ranks[i])) missing.push_back(p);
            }
    }

    std::optional<FailureReport> failure() const {
        for (int i = 0; i < group_.local; ++i)
            if (read_pinned(host_->report[i].failure) != 0) return host_->report[i];
        return std::nullopt;
    }

    /// Ends waits on these ranks, which are known to be gone.
    void stop(std::uint16_t ranks) const {
        Failure failure;
        failure.kind = FailureKind::kPeerLeft;
        failure.ranks = ranks;
        std::atomic_ref<std::uint64_t>(host_->stop)
            .store(failure.encode(), std::memory_order_release);
    }

    cudaError_t query(void* stream) const {
        const DeviceScope scope(device_);
        return cudaStreamQuery(static_cast<cudaStream_t>(stream));
    }

  private:
    /// Pinned and mapped, so that kernels report without a copy.
    struct Pinned {
        FailureReport report[kMaxRanks];
        std::uint64_t stop;
    };

    void allocate() {
        check_runtime(cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof(Pinned),
                                    cudaHostAllocMapped | cudaHostAllocPortable),
                      "cudaHostAlloc");
        *host_ = Pinned{};
        void* mapped = nullptr;
        check_runtime(cudaHostGetDevicePointer(&mapped, host_, 0), "cudaHostGetDevicePointer");
        group_.report = static_cast<Pinned*>(mapped)->report;
        group_.stop = &static_cast<Pinned*>(mapped)->stop;
        check_runtime(
            cudaMalloc(reinterpret_cast<void**>(&group_.state), sizeof(RankState) * group_.local),
            "cudaMalloc");
        check_runtime(cudaMemset(group_.state, 0, sizeof(RankState) * group_.local), "cudaMemset");
        check_runtime(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    void free() noexcept {
        cudaFree(group_.state);
        cudaFreeHost(host_);
    }

    int device_;
    FabricKernels& kernels_;
    device::FabricGroup group_{};
    Pinned* host_ = nullptr;
};

class CudaEngine final : public Engine {
  public:
    CudaEngine(const FabricOptions& options, const std::vector<int>& local_ranks,
               const std::vector<int>& devices, const Blocks& blocks,
               std::function<bool(int)> peer_left, std::shared_ptr<FabricKernels> kernels)
        : world_(options.world),
          local_ranks_(local_ranks),
          peer_left_(std::move(peer_left)),
          kernels_(kernels ? std::move(kernels) : std::make_shared<FabricKernels>()) {
        std::vector<int> order;
        for (int device : devices)
            if (std::find(order.begin(), order.end(), device) == order.end())
                order.push_back(device);
        for (int device : order) {
            std::vector<int> ranks;
            for (std::size_t i = 0; i < local_ranks.size(); ++i)
                if (devices[i] == device) ranks.push_back(local_ranks[i]);
            devices_.push_back(
                std::make_unique<DeviceRanks>(options, device, ranks, blocks, *kernels_));
        }
    }

    void barrier(const Streams& streams) override {
        CallShape call;
        call.signature = kBarrierSignature;
        launch(ProgramId::kBarrier, call, {}, streams);
    }
    void begin(const CallShape& call, const Streams& streams) override {
        launch(ProgramId::kBegin, call, {}, streams);
    }
    void publish(const CallShape& call, const Streams& streams) override {
        launch(ProgramId::kPublish, call, {}, streams);
    }
    void acquire(const CallShape& call, const std::vector<Poison>& outputs,
                 const Streams& streams) override {
        launch(ProgramId::kAcquire, call, outputs, streams);
    }

    void exchange(const CallShape& call, const std::vector<Poison>& outputs,
                  const Streams& streams) override {
        launch(ProgramId::kExchange, call, outputs, streams);
    }
    void hand_over(const CallShape& call, const std::vector<Poison>& outputs, const CallShape& next,
                   const Streams& streams) override {
        launch(ProgramId::kHandOver, call, outputs, streams, next);
    }

    // Ranks of several nodes are one to a process.
    void send(const CallShape& call, const PutTable& table, const Streams& streams) override {
        devices_.front()->send(call, table, stream(streams, 0));
    }
    void receive(const CallShape& call, const PutTable& table, const Streams& streams) override {
        devices_.front()->receive(call, table, stream(streams, 0));
    }
    void put(int from, int to, std::byte* target, bool mapped, const std::byte* source,
             std::size_t bytes, const Streams& streams) override {
        for (std::size_t d = 0; d < devices_.size(); ++d)
            if (devices_[d]->has(from))
                devices_[d]->put(to, target, mapped, source, bytes, stream(streams, d));
    }

    std::optional<FailureReport> failure() const override {
        for (const auto& device : devices_)
            if (auto report = device->failure()) return report;
        return std::nullopt;
    }

    const device::FabricGroup* device_group(int device_index) const override {
        if (device_index < 0 || device_index >= static_cast<int>(devices_.size()))
            throw Error(ErrorKind::kBadInput,
                        fmt::format("device {} of {}", device_index, devices_.size()));
        return &devices_[static_cast<std::size_t>(device_index)]->group();
    }

    /// Looks after the peers while it waits: a dead one ends the wait long before its time limit.
    void synchronize(const Streams& streams) const override {
        for (std::size_t d = 0; d < devices_.size(); ++d) {
            for (unsigned polls = 0;; ++polls) {
                const cudaError_t state = devices_[d]->query(stream(streams, d));
                if (state == cudaSuccess) break;
                if (state != cudaErrorNotReady) check_runtime(state, "waiting for a stream");
                if (polls % 256 == 255) look_after_peers();
                std::this_thread::yield();
            }
        }
    }

    void reset_channels(int first, int count) override {
        for (const auto& device : devices_) device->reset_channels(first, count);
    }

    void store_self_test() override {
        for (const auto& device : devices_) device->self_test();
    }
    std::vector<int> missing_self_tests() override {
        std::vector<int> missing;
        for (const auto& device : devices_) device->missing_self_tests(missing);
        return missing;
    }

  private:
    void look_after_peers() const {
        if (!peer_left_) return;
        std::uint16_t gone = 0;
        for (int p = 0; p < world_; ++p)
            if (peer_left_(p)) gone |= static_cast<std::uint16_t>(1u << p);
        if (gone != 0)
            for (const auto& device : devices_) device->stop(gone);
    }

    void* stream(const Streams& streams, std::size_t device) const {
        const std::span<void* const> all = streams.get();
        if (all.size() == devices_.size()) return all[device];
        if (all.size() == 1 && all[0] == nullptr) return nullptr;
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} streams for {} devices", all.size(), devices_.size()));
    }

    void launch(ProgramId program, const CallShape& call, const std::vector<Poison>& outputs,
                const Streams& streams, const CallShape& next = {}) {
        for (std::size_t d = 0; d < devices_.size(); ++d)
            devices_[d]->launch(program, call, next, outputs, stream(streams, d));
    }

    int world_;
    std::vector<int> local_ranks_;
    std::function<bool(int)> peer_left_;
    std::shared_ptr<FabricKernels> kernels_;
    std::vector<std::unique_ptr<DeviceRanks>> devices_;
};

}  // namespace

std::unique_ptr<Engine> make_cuda_engine(const FabricOptions& options,
                                         const std::vector<int>& local_ranks,
                                         const std::vector<int>& devices, const Blocks& blocks,
                                         std::function<bool(int)> peer_left,
                                         std::shared_ptr<FabricKernels> kernels) {
    return std::make_unique<CudaEngine>(options, local_ranks, devices, blocks, std::move(peer_left),
                                        std::move(kernels));
}

}  // namespace xstage::fabric
