// Rows of a result that cannot be stitched (LSE, text that all ranks hold, packed outputs) to the
// ranks that own them, and copies into a caller's memory. One thread per access; destinations are
// the y axis of the grid, beginning with the right neighbour, so that senders do not meet.

#include <algorithm>
#include <type_traits>

#include "ulysses/send.cuh"

namespace xstage::ulysses::kernels {
namespace {

constexpr int kThreads = 256;

/// `T` is the dtype when factors are applied, else void.
template <class Unit, class T>
__device__ __forceinline__ Unit scaled(Unit unit, float factor) {
    T element[sizeof(Unit) / sizeof(T)];
    memcpy(element, &unit, sizeof unit);
    for (T& x : element) x = T::from(exact::mul(x.value(), factor));
    memcpy(&unit, element, sizeof unit);
    return unit;
}

/// Takes the fastest of the dimensions left in `rest`, of extent n, away from it.
__device__ __forceinline__ std::int64_t split(std::int64_t& rest, std::int64_t n) {
    const std::int64_t whole = quotient(rest, n);
    const std::int64_t index = rest - whole * n;
    rest = whole;
    return index;
}

template <class Unit, class T>
__global__ void __launch_bounds__(kThreads) scatter_units(const __grid_constant__ RowScatter s) {
    const int p = static_cast<int>((s.first + blockIdx.y) % s.world);
    if (s.to[p] == nullptr) return;
    const std::int64_t units = s.bytes / static_cast<int>(sizeof(Unit));
    const std::int64_t rows = s.rows[p];
    const std::int64_t total = units * s.heads * rows * s.batch;
    const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += step) {
        std::int64_t rest = i;
        const std::int64_t inner_row = s.rows_inside ? split(rest, rows) : 0;
        const std::int64_t unit = split(rest, units);
        const std::int64_t head = split(rest, s.heads);
        const std::int64_t row = s.rows_inside ? inner_row : split(rest, rows);
        const std::byte* from = s.from + rest * s.from_batch +
                                axis_row(s.from_map, p, row) * s.from_row + head * s.from_head +
                                unit * static_cast<int>(sizeof(Unit));
        std::byte* to = s.to[p] + rest * s.to_batch[p] + axis_row(s.to_map, p, row) * s.to_row +
                        head * s.to_head + unit * static_cast<int>(sizeof(Unit));
        Unit value = *reinterpret_cast<const Unit*>(from);
        if constexpr (!std::is_void_v<T>) {
            const auto* factor =
                reinterpret_cast<const T*>(s.scale + rest * s.scale_batch + row * s.scale_row);
            value = scaled<Unit, T>(value, factor[head].value());
        }
        *reinterpret_cast<Unit*>(to) = value;
    }
}

/// Bits that any address or stride has set; the lowest is what all of them are aligned to.
std::uint64_t misalignment(const RowScatter& s) {
    std::uint64_t bits =
        reinterpret_cast<std::uint64_t>(s.from) | static_cast<std::uint64_t>(s.bytes);
    for (std::int64_t stride : {s.from_batch, s.from_row, s.from_head, s.to_row, s.to_head})
        bits |= static_cast<std::uint64_t>(stride);
    for (int p = 0; p < s.world; ++p)
        if (s.to[p] != nullptr)
            bits |= reinterpret_cast<std::uint64_t>(s.to[p]) |
                    static_cast<std::uint64_t>(s.to_batch[p]);
    return bits;
}

template <class Unit, class T>
cudaError_t launch(const RowScatter& s, std::int64_t most_rows, cudaStream_t stream) {
    const std::int64_t total =
        s.bytes / static_cast<std::int64_t>(sizeof(Unit)) * s.heads * s.batch * most_rows;
    constexpr std::int64_t kMostBlocks = 1056;  // eight per SM; more would only queue
    const auto blocks = std::min<std::int64_t>((total + kThreads - 1) / kThreads, kMostBlocks);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(s.world));
    scatter_units<Unit, T><<<grid, kThreads, 0, stream>>>(s);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_widest(const RowScatter& s, std::int64_t most_rows, cudaStream_t stream) {
    const std::uint64_t bits = misalignment(s);
    if (bits % 16 == 0) return launch<uint4, T>(s, most_rows, stream);
    if (bits % 4 == 0) return launch<std::uint32_t, T>(s, most_rows, stream);
    if constexpr (!std::is_same_v<T, Fp32>) {
        if (bits % 2 == 0) return launch<std::uint16_t, T>(s, most_rows, stream);
    }
    return cudaErrorMisalignedAddress;
}

}  // namespace

cudaError_t scatter_rows(const RowScatter& scatter, cudaStream_t stream) {
    RowScatter s = scatter;
    if (s.scale == nullptr && s.from_head == s.bytes && s.to_head == s.bytes) {
        s.bytes *= s.heads;
        s.heads = 1;
    }
    std::int64_t most_rows = 0;
    for (int p = 0; p < s.world; ++p)
        if (s.to[p] != nullptr) most_rows = std::max(most_rows, s.rows[p]);
    if (most_rows == 0 || s.bytes == 0) return cudaSuccess;
    if (s.scale == nullptr) return launch_widest<void>(s, most_rows, stream);
    switch (s.dtype) {
        case fabric::DType::kBf16:
            return launch_widest<Bf16>(s, most_rows, stream);
        case fabric::DType::kF16:
            return launch_widest<Fp16>(s, most_rows, stream);
        case fabric::DType::kF32:
            return launch_widest<Fp32>(s, most_rows, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t preload_scatter() {
    cudaFuncAttributes a{};
    const void* kernels[] = {reinterpret_cast<const void*>(scatter_units<uint4, void>),
                             reinterpret_cast<const void*>(scatter_units<std::uint32_t, void>),
                             reinterpret_cast<const void*>(scatter_units<std::uint16_t, void>),
                             reinterpret_cast<const void*>(scatter_units<uint4, Bf16>),
                             reinterpret_cast<const void*>(scatter_units<uint4, Fp16>)};
    cudaError_t error = cudaSuccess;
    for (const void* kernel : kernels)
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, kernel);
    return error;
}

}  // namespace xstage::ulysses::kernels
