#include "fabric/nvshmem_kernels.hpp"

#include <algorithm>
#include <array>

#include "fabric/cuda_driver.hpp"

extern "C" const unsigned char xstage_nvshmem_fatbin[];

namespace xstage::fabric {
namespace {

constexpr unsigned kThreads = 256;
/// A few blocks saturate a port, and the attention kernel's successor may want the rest.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::size_t kSmallestSlice = std::size_t{64} << 10;

template <class... Arguments>
cudaError_t launch_kernel(cudaKernel_t kernel, unsigned blocks, unsigned threads,
                          cudaStream_t stream, const Arguments&... arguments) {
    std::array<void*, sizeof...(Arguments)> list{
        const_cast<void*>(static_cast<const void*>(&arguments))...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                            list.data(), 0, stream);
}

class NvshmemKernels final : public FabricKernels {
  public:
    NvshmemKernels() {
        const std::pair<cudaKernel_t*, const char*> names[] = {
            {&begin_, "xstage_begin"},         {&publish_, "xstage_publish"},
            {&acquire_, "xstage_acquire"},     {&exchange_, "xstage_exchange"},
            {&hand_over_, "xstage_hand_over"}, {&barrier_, "xstage_barrier"},
            {&self_test_, "xstage_self_test"}, {&send_, "xstage_send"},
            {&receive_, "xstage_receive"},     {&put_, "xstage_put"}};
        for (const auto& [kernel, name] : names)
            check_runtime(cudaLibraryGetKernel(kernel, nvshmem_device_code(), name), name);
    }

    cudaError_t preload() override {
        for (cudaKernel_t kernel : {begin_, publish_, acquire_, exchange_, hand_over_, barrier_,
                                    self_test_, send_, receive_, put_}) {
            cudaFuncAttributes attributes{};
            const cudaError_t error =
                cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
            if (error != cudaSuccess) return error;
        }
        return cudaSuccess;
    }

    cudaError_t launch(ProgramId program, const device::FabricGroup& group, const CallShape& call,
                       const CallShape& next, const PoisonTable& poison,
                       cudaStream_t stream) override {
        const unsigned threads = 32u * group.local;
        switch (program) {
            case ProgramId::kBegin:
                return launch_kernel(begin_, 1, threads, stream, group, call, poison);
            case ProgramId::kPublish:
                return launch_kernel(publish_, 1, threads, stream, group, call, poison);
            case ProgramId::kAcquire:
                return launch_kernel(acquire_, 1, threads, stream, group, call, poison);
            case ProgramId::kExchange:
                return launch_kernel(exchange_, 1, threads, stream, group, call, poison);
            case ProgramId::kHandOver:
                return launch_kernel(hand_over_, 1, threads, stream, group, call, next, poison);
            case ProgramId::kBarrier:
                return launch_kernel(barrier_, 1, threads, stream, group, call);
        }
        return cudaErrorInvalidValue;
    }

    cudaError_t self_test(const device::FabricGroup& group, cudaStream_t stream) override {
        return launch_kernel(self_test_, 1, 32u * group.local, stream, group);
    }

    cudaError_t send(const device::FabricGroup& group, const CallShape& call, const PutTable& table,
                     cudaStream_t stream) override {
        return launch_kernel(send_, blocks(table.items()), kThreads, stream, group, call, table);
    }
    cudaError_t receive(const device::FabricGroup& group, const CallShape& call,
                        const PutTable& table, cudaStream_t stream) override {
        return launch_kernel(receive_, blocks(table.items()), kThreads, stream, group, call, table);
    }

    cudaError_t put(int peer, std::byte* target, const std::byte* source, std::size_t bytes,
                    cudaStream_t stream) override {
        const std::size_t share = (bytes + kMostBlocks - 1) / kMostBlocks;
        const std::size_t slice = std::max(kSmallestSlice, (share + 15) / 16 * 16);
        const auto slices = static_cast<std::int64_t>((bytes + slice - 1) / slice);
        return launch_kernel(put_, blocks(slices), kThreads, stream, peer, target, source, bytes,
                             slice);
    }

  private:
    static unsigned blocks(std::int64_t items) {
        return static_cast<unsigned>(std::clamp<std::int64_t>(items, 1, kMostBlocks));
    }

    cudaKernel_t begin_, publish_, acquire_, exchange_, hand_over_, barrier_, self_test_, send_,
        receive_, put_;
};

}  // namespace

cudaLibrary_t nvshmem_device_code() {
    static const cudaLibrary_t code = [] {
        cudaLibrary_t loaded = nullptr;
        check_runtime(cudaLibraryLoadData(&loaded, xstage_nvshmem_fatbin, nullptr, nullptr, 0,
                                          nullptr, nullptr, 0),
                      "loading the device code of the nvshmem backend");
        return loaded;
    }();
    return code;
}

NvshmemVersion nvshmem_device_version() {
    void* at = nullptr;
    std::size_t bytes = 0;
    // NVSHMEM's own check reads the same symbol.
    check_runtime(
        cudaLibraryGetGlobal(&at, &bytes, nvshmem_device_code(), "nvshmemi_device_lib_version_d"),
        "finding the version of NVSHMEM's device library");
    std::array<int, 3> version{};
    check_runtime(
        cudaMemcpy(version.data(), at, std::min(bytes, sizeof version), cudaMemcpyDeviceToHost),
        "reading the version of NVSHMEM's device library");
    return {version[0], version[1], version[2]};
}

std::shared_ptr<FabricKernels> make_nvshmem_kernels() {
    return std::make_shared<NvshmemKernels>();
}

}  // namespace xstage::fabric
