#include "gpu_device.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace xstage::ulysses::suite {
namespace {

void check(cudaError_t error) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

__global__ void compare_rows(const std::uint16_t* got, std::size_t stride,
                             const std::uint16_t* want, std::size_t width,
                             unsigned long long* count) {
    for (std::size_t i = threadIdx.x; i < width; i += blockDim.x)
        if (got[blockIdx.x * stride + i] != want[blockIdx.x * width + i]) atomicAdd(count, 1ull);
}

}  // namespace

int gpu_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct GpuDevice::Impl {
    cudaStream_t stream = nullptr;
    cudaStream_t loads = nullptr;
    std::vector<void*> kept;
    unsigned long long* count = nullptr;
    void* load[2] = {nullptr, nullptr};
};

GpuDevice::GpuDevice() : impl_(std::make_unique<Impl>()) {
    check(cudaStreamCreateWithFlags(&impl_->stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&impl_->loads, cudaStreamNonBlocking));
    impl_->count = static_cast<unsigned long long*>(allocate(sizeof(unsigned long long)));
    check(cudaMemset(impl_->count, 0, sizeof(unsigned long long)));
    check(cudaDeviceSynchronize());
}

GpuDevice::~GpuDevice() {
    cudaDeviceSynchronize();
    for (void* p : impl_->kept) cudaFree(p);
    cudaStreamDestroy(impl_->stream);
    cudaStreamDestroy(impl_->loads);
}

fabric::Streams GpuDevice::streams() const {
    return fabric::Streams(impl_->stream);
}

void* GpuDevice::allocate(std::size_t size) {
    void* p = nullptr;
    check(cudaMalloc(&p, size + 256));
    impl_->kept.push_back(p);
    return p;
}

void* GpuDevice::upload(int, const void* bytes, std::size_t size) {
    void* p = allocate(size);
    check(cudaMemcpy(p, bytes, size, cudaMemcpyHostToDevice));
    // A pageable copy may return before its last part has arrived, and our stream does not wait for
    // the default one.
    check(cudaDeviceSynchronize());
    return p;
}

void GpuDevice::download(int, void* to, const void* from, std::size_t size) {
    synchronize();
    check(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost));
}

void GpuDevice::copy(void* to, const void* from, std::size_t size) {
    check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, impl_->stream));
}

void GpuDevice::spoil(void* to, std::size_t size) {
    check(cudaMemsetAsync(to, 0xff, size, impl_->stream));
}

void GpuDevice::synchronize() {
    check(cudaStreamSynchronize(impl_->stream));
}

void GpuDevice::replay(const std::function<void()>& work, int replays,
                       const std::function<void(int)>& between) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(impl_->stream, cudaStreamCaptureModeThreadLocal));
    work();
    check(cudaStreamEndCapture(impl_->stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < replays; ++i) {
        between(i);
        check(cudaGraphLaunch(exec, impl_->stream));
    }
    synchronize();
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
}

void GpuDevice::count_differences(const View& view, std::int64_t rows, std::size_t row_bytes,
                                  std::size_t element, const void* expected) {
    if (rows == 0) return;
    compare_rows<<<static_cast<unsigned>(rows), 256, 0, impl_->stream>>>(
        static_cast<const std::uint16_t*>(view.data),
        static_cast<std::size_t>(view.row_stride) * element / 2,
        static_cast<const std::uint16_t*>(expected), row_bytes / 2, impl_->count);
    check(cudaGetLastError());
}

std::uint64_t GpuDevice::differences() {
    unsigned long long count = 0;
    download(0, &count, impl_->count, sizeof count);
    return count;
}

void GpuDevice::load(int copies) {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    for (void*& p : impl_->load)
        if (p == nullptr) p = allocate(kBytes);
    for (int i = 0; i < copies; ++i)
        check(cudaMemcpyAsync(impl_->load[i % 2], impl_->load[1 - i % 2], kBytes,
                              cudaMemcpyDeviceToDevice, impl_->loads));
}

Whole whole_on_gpu(GpuDevice& device, Case& c, const AttentionKernel& kernel) {
    Whole w = whole(c, [&](const AttentionCall& host) {
        AttentionCall call = host;
        const std::size_t e = fabric::bytes_of(host.dtype);
        const auto bytes = [&](const View& v) {
            return static_cast<std::size_t>(host.batch * v.batch_stride) * e;
        };
        const std::size_t lse =
            static_cast<std::size_t>(host.batch * host.lse.batch_stride) * sizeof(float);
        call.q.data = device.upload(0, host.q.data, bytes(host.q));
        call.k.data = device.upload(0, host.k.data, bytes(host.k));
        call.v.data = device.upload(0, host.v.data, bytes(host.v));
        call.out.data = device.allocate(bytes(host.out));
        call.lse.data = static_cast<float*>(device.allocate(lse));
        if (host.kv_lengths != nullptr)
            call.kv_lengths = static_cast<std::int32_t*>(
                device.upload(0, host.kv_lengths, static_cast<std::size_t>(host.batch) * 4));
        call.stream = device.streams().get()[0];
        kernel(call);
        device.download(0, host.out.data, call.out.data, bytes(host.out));
        device.download(0, host.lse.data, call.lse.data, lse);
    });
    return w;
}

}  // namespace xstage::ulysses::suite
