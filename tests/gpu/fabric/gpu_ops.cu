#include "gpu_ops.hpp"

#include <cuda_runtime.h>

#include <algorithm>

namespace xstage::fabric::suite {
namespace {

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

__device__ std::uint32_t device_pattern(std::uint64_t seed, std::uint64_t row, std::uint64_t word) {
    return static_cast<std::uint32_t>(protocol::mix(protocol::mix(seed, row), word));
}

struct Rows {
    std::byte* data;
    std::size_t stride;
    std::int64_t rows;
    std::size_t words;
    std::uint64_t seed;
    std::int64_t first_row;
    const std::uint64_t* counter;  ///< where not null, the seed is its value * 1000 + seed

    __device__ std::uint32_t expected(std::int64_t row, std::size_t word) const {
        const std::uint64_t s = counter == nullptr ? seed : *counter * 1000 + seed;
        return device_pattern(s, first_row + row, word);
    }
};

__global__ void store_rows(Rows r) {
    for (std::int64_t row = blockIdx.x; row < r.rows; row += gridDim.x)
        for (std::size_t w = threadIdx.x; w < r.words; w += blockDim.x)
            reinterpret_cast<std::uint32_t*>(r.data + row * r.stride)[w] = r.expected(row, w);
}

constexpr std::size_t kBulkWords = 2048;

// Shared memory to the rows by bulk copies, which live in the async proxy.
__global__ void store_rows_bulk(Rows r) {
    __shared__ alignas(128) std::uint32_t stage[kBulkWords];
    for (std::int64_t row = blockIdx.x; row < r.rows; row += gridDim.x) {
        for (std::size_t first = 0; first < r.words; first += kBulkWords) {
            const std::size_t words = min(kBulkWords, r.words - first);
            for (std::size_t w = threadIdx.x; w < words; w += blockDim.x)
                stage[w] = r.expected(row, first + w);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            if (threadIdx.x == 0) {
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                                 r.data + row * r.stride + first * 4),
                             "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(stage))),
                             "r"(static_cast<std::uint32_t>(words * 4))
                             : "memory");
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                // Shared memory only needs to have been read; the kernel's end waits for the rest.
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            }
            __syncthreads();
        }
    }
}

__global__ void count_differing(Rows r, unsigned long long* count) {
    unsigned long long mine = 0;
    for (std::int64_t row = blockIdx.x; row < r.rows; row += gridDim.x)
        for (std::size_t w = threadIdx.x; w < r.words; w += blockDim.x)
            mine += reinterpret_cast<const std::uint32_t*>(r.data + row * r.stride)[w] !=
                    r.expected(row, w);
    if (mine != 0) atomicAdd(count, mine);
}

__global__ void count_not_poison(const std::uint32_t* data, std::size_t words,
                                 unsigned long long* count) {
    unsigned long long mine = 0;
    for (std::size_t w = blockIdx.x * blockDim.x + threadIdx.x; w < words;
         w += std::size_t{gridDim.x} * blockDim.x)
        mine += data[w] != 0xffffffffu;
    if (mine != 0) atomicAdd(count, mine);
}

__global__ void add_one(std::uint64_t* counter) {
    ++*counter;
}

__global__ void hold(std::uint32_t microseconds) {
    std::uint64_t start;
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < std::uint64_t{microseconds} * 1000);
}

constexpr int kThreads = 256;

int blocks(std::int64_t rows) {
    return static_cast<int>(std::clamp<std::int64_t>(rows, 1, 64));
}

}  // namespace

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
    return count;
}

struct GpuOps::Device {
    explicit Device(int ordinal) : id(ordinal) {
        use();
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        check(cudaMalloc(&calls, sizeof *calls), "cudaMalloc");
        check(cudaMalloc(&total, sizeof *total), "cudaMalloc");
        check(cudaMalloc(&once, sizeof *once), "cudaMalloc");
        check(cudaMemset(calls, 0, sizeof *calls), "cudaMemset");
        check(cudaMemset(total, 0, sizeof *total), "cudaMemset");
        // A kernel that is first loaded while another one waits could wait for it in turn.
        store_rows<<<1, 32, 0, stream>>>(Rows{});
        store_rows_bulk<<<1, 32, 0, stream>>>(Rows{});
        count_differing<<<1, 32, 0, stream>>>(Rows{}, total);
        count_not_poison<<<1, 32, 0, stream>>>(nullptr, 0, total);
        add_one<<<1, 1, 0, stream>>>(calls);
        hold<<<1, 1, 0, stream>>>(0);
        check(cudaStreamSynchronize(stream), "loading the test kernels");
    }
    ~Device() {
        use();
        if (beside != nullptr) cudaStreamDestroy(beside);
        cudaFree(ballast);
        cudaStreamDestroy(stream);
        cudaFree(calls);
        cudaFree(total);
        cudaFree(once);
    }
    void use() const { check(cudaSetDevice(id), "cudaSetDevice"); }
    std::uint64_t read(const unsigned long long* from) const {
        unsigned long long value = 0;
        use();
        check(cudaMemcpyAsync(&value, from, sizeof value, cudaMemcpyDeviceToHost, stream), "copy");
        check(cudaStreamSynchronize(stream), "waiting");
        return value;
    }

    int id;
    cudaStream_t stream = nullptr;
    cudaStream_t beside = nullptr;
    std::byte* ballast = nullptr;
    std::uint64_t* calls = nullptr;
    unsigned long long* total = nullptr;
    unsigned long long* once = nullptr;
};

GpuOps::GpuOps(const Fabric& fabric, const std::vector<int>& devices) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
        auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& d) { return d->id == devices[i]; });
        if (found == devices_.end()) {
            devices_.push_back(std::make_unique<Device>(devices[i]));
            found = devices_.end() - 1;
        }
        ranks_.emplace_back(fabric.local_ranks()[i], found->get());
    }
}
GpuOps::~GpuOps() = default;

GpuOps::Device& GpuOps::device_of(int rank) const {
    for (const auto& [r, device] : ranks_)
        if (r == rank) {
            device->use();
            return *device;
        }
    throw std::runtime_error("not a rank of this process");
}

Streams GpuOps::streams() const {
    std::vector<void*> all;
    for (const auto& d : devices_) all.push_back(d->stream);
    return std::span<void* const>(all);
}

void GpuOps::store(int rank, void* to, std::size_t stride, std::int64_t rows, std::size_t words,
                   std::uint64_t seed, std::int64_t first_row) {
    Device& d = device_of(rank);
    const Rows r{static_cast<std::byte*>(to), stride, rows, words, seed, first_row, nullptr};
    const bool bulk = words % 4 == 0 && stride % 16 == 0 && stores_++ % 2 == 1;
    if (bulk) {
        store_rows_bulk<<<blocks(rows), kThreads, 0, d.stream>>>(r);
    } else {
        store_rows<<<blocks(rows), kThreads, 0, d.stream>>>(r);
    }
    check(cudaGetLastError(), "store");
}

std::uint64_t GpuOps::differing(int rank, const void* from, std::size_t stride, std::int64_t rows,
                                std::size_t words, std::uint64_t seed, std::int64_t first_row) {
    Device& d = device_of(rank);
    check(cudaMemsetAsync(d.once, 0, sizeof *d.once, d.stream), "memset");
    count_differing<<<blocks(rows), kThreads, 0, d.stream>>>(
        Rows{static_cast<std::byte*>(const_cast<void*>(from)), stride, rows, words, seed, first_row,
             nullptr},
        d.once);
    check(cudaGetLastError(), "differing");
    return d.read(d.once);
}

std::uint64_t GpuOps::not_poison(int rank, const void* from, std::size_t words) {
    Device& d = device_of(rank);
    check(cudaMemsetAsync(d.once, 0, sizeof *d.once, d.stream), "memset");
    count_not_poison<<<64, kThreads, 0, d.stream>>>(static_cast<const std::uint32_t*>(from), words,
                                                    d.once);
    check(cudaGetLastError(), "not_poison");
    return d.read(d.once);
}

void GpuOps::delay(int rank, std::uint32_t microseconds) {
    Device& d = device_of(rank);
    hold<<<1, 1, 0, d.stream>>>(microseconds);
    check(cudaGetLastError(), "delay");
}

void GpuOps::counted_store(int rank, void* to, std::size_t stride, std::int64_t rows,
                           std::size_t words, std::uint64_t salt, std::int64_t first_row) {
    Device& d = device_of(rank);
    const Rows r{static_cast<std::byte*>(to), stride, rows, words, salt, first_row, d.calls};
    if (stores_++ % 2 == 1) {
        store_rows_bulk<<<blocks(rows), kThreads, 0, d.stream>>>(r);
    } else {
        store_rows<<<blocks(rows), kThreads, 0, d.stream>>>(r);
    }
    check(cudaGetLastError(), "counted_store");
}

void GpuOps::counted_verify(int rank, const void* from, std::size_t stride, std::int64_t rows,
                            std::size_t words, std::uint64_t salt) {
    Device& d = device_of(rank);
    count_differing<<<blocks(rows), kThreads, 0, d.stream>>>(
        Rows{static_cast<std::byte*>(const_cast<void*>(from)), stride, rows, words, salt, 0,
             d.calls},
        d.total);
    check(cudaGetLastError(), "counted_verify");
}

void GpuOps::count_call() {
    for (const auto& d : devices_) {
        d->use();
        add_one<<<1, 1, 0, d->stream>>>(d->calls);
        check(cudaGetLastError(), "count_call");
    }
}

std::uint64_t GpuOps::counted_differences() {
    std::uint64_t sum = 0;
    for (const auto& d : devices_) sum += d->read(d->total);
    return sum;
}

void GpuOps::load(int copies) {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    for (const auto& d : devices_) {
        d->use();
        if (d->ballast == nullptr) {
            check(cudaMalloc(&d->ballast, 2 * kBytes), "cudaMalloc");
            check(cudaStreamCreateWithFlags(&d->beside, cudaStreamNonBlocking), "cudaStreamCreate");
        }
        for (int i = 0; i < copies; ++i)
            check(
                cudaMemcpyAsync(d->ballast + kBytes * (i % 2), d->ballast + kBytes * ((i + 1) % 2),
                                kBytes, cudaMemcpyDeviceToDevice, d->beside),
                "copy beside");
    }
}

void GpuOps::replay(const std::function<void()>& work, int replays,
                    const std::function<void(int)>& between) {
    if (devices_.size() != 1) throw std::runtime_error("graphs are tested on one device a process");
    Device& d = *devices_.front();
    d.use();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    // Relaxed, as a framework captures: nothing the calls do on the host may disturb it either way.
    check(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    work();
    check(cudaStreamEndCapture(d.stream, &graph), "end capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int i = 0; i < replays; ++i) {
        check(cudaGraphLaunch(exec, d.stream), "graph launch");
        between(i);
    }
    check(cudaStreamSynchronize(d.stream), "waiting for the replays");
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

void graph_replays(Fabric& fabric, GpuOps& ops, int replays) {
    const int world = fabric.world();
    StitchedOptions options;
    options.rows.assign(world, 24);
    options.row_bytes = static_cast<std::size_t>(world) * 1024;
    StitchedTensor tensor(fabric, options);
    const StitchedLayout& layout = tensor.layout();
    const std::size_t part = layout.spec.row_bytes / world;
    auto call = [&](int buffer) {
        tensor.begin(buffer, ops.streams());
        for (int r : fabric.local_ranks())
            for_each_run(layout, [&](int owner, std::int64_t first, std::int64_t rows,
                                     std::size_t at) {
                ops.counted_store(r, static_cast<std::byte*>(tensor.range(buffer)) + at + part * r,
                                  layout.row_stride, rows, part / 4, r * 16 + owner, first);
            });
        if (buffer == 0) {
            tensor.exchange(buffer, ops.streams());
        } else {
            tensor.publish(buffer, ops.streams());
            tensor.acquire(buffer, ops.streams());
        }
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world; ++p)
                ops.counted_verify(r, static_cast<std::byte*>(tensor.receive(buffer, r)) + part * p,
                                   layout.row_stride, layout.spec.rows[r], part / 4, p * 16 + r);
        ops.count_call();
    };
    call(0);
    ops.replay([&] { call(0), call(1), call(0); }, replays,
               [&](int i) {
                   if (i % 7 == 3) call(i % 2);
                   if (i % 50 == 9) fabric.barrier(ops.streams());
                   if (i % 31 == 5) ops.delay(fabric.local_ranks().front(), 200);
               });
    fabric.synchronize(ops.streams());
    SUITE_REQUIRE(ops.counted_differences() == 0);
    // The count itself works: a wrong salt is noticed.
    ops.counted_verify(fabric.local_ranks().front(),
                       tensor.receive(0, fabric.local_ranks().front()), layout.row_stride, 1,
                       part / 4, 999);
    SUITE_REQUIRE(ops.counted_differences() == part / 4);
    fabric.barrier(ops.streams());
    fabric.synchronize(ops.streams());
}

}  // namespace xstage::fabric::suite
