// The first all-to-all of Ulysses: each head of a projection goes to the rank that computes it.
//
//   to[p][b, map(row), h] = rotate(normalise(from[b, row, first_head[p] + h]))
//
// A group of lanes holds a head, 8 elements a lane, so every load and store is 16 bytes and a store
// of a head is one run. A group takes a few heads of one row in the sender's order (order.hpp) and
// loads them before it works on the first.

#include "ulysses/send.cuh"

namespace xstage::ulysses::kernels {

cudaError_t preload_scatter();

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of 2 bytes in one access
// Heads in flight per group: 64 bytes a thread hide memory's latency; with arithmetic between, its
// own latency is hidden by the other warps, and registers are dearer.
constexpr int kPlainHeads = 4;
constexpr int kHeads = 2;
static_assert(kVector == kSumGroup, "a lane's elements are one group of the sum of squares");

struct Work {
    std::int64_t row;  // over batch * rows
    int destination;   // of the first head
    int head;          // within it
    int heads;
    bool onward;  // heads may go on to the next destinations
};

/// Cuts the order into pieces of up to kHeads heads of one row.
template <int kHeads>
__device__ __forceinline__ Work work_at(const HeadScatter& s, std::int64_t rows, int total,
                                        std::int64_t i) {
    if (s.order == SendOrder::kInterleaved) {
        const int parts = (total + kHeads - 1) / kHeads;
        const std::int64_t row = i / parts;
        const int slot = static_cast<int>(i % parts) * kHeads;
        int to = send_step(s.order, s.rank, s.world, rows, row * s.world).destination;
        int head = slot;
        while (head >= s.head_count[to]) {
            head -= s.head_count[to];
            to = to + 1 == s.world ? 0 : to + 1;
        }
        return {row, to, head, min(kHeads, total - slot), true};
    }
    for (int turn = 0;; ++turn) {
        const int to = send_step(s.order, s.rank, s.world, rows, turn * rows).destination;
        const int parts = (s.head_count[to] + kHeads - 1) / kHeads;
        if (i < parts * rows) {
            const int head = static_cast<int>(i % parts) * kHeads;
            return {i / parts, to, head, min(kHeads, s.head_count[to] - head), false};
        }
        i -= parts * rows;
    }
}

template <int kHeads>
std::int64_t work_count(const HeadScatter& s) {
    const std::int64_t rows = s.rows * s.batch;
    if (s.order == SendOrder::kInterleaved) return (sent_heads(s) + kHeads - 1) / kHeads * rows;
    std::int64_t count = 0;
    for (int p = 0; p < s.world; ++p) count += (s.head_count[p] + kHeads - 1) / kHeads * rows;
    return count;
}

template <class T>
struct alignas(16) Vector {
    T element[kVector];
};

template <class T>
__device__ __forceinline__ Vector<T> load(const T* from) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    Vector<T> v;
    memcpy(&v, &raw, sizeof v);
    return v;
}

/// Sum over the lanes of a group, every lane the same; distances as on the host.
__device__ __forceinline__ float sum_over(float value, int lanes, unsigned mask) {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = exact::add(value, __shfl_xor_sync(mask, value, distance));
    return value;
}

template <class T>
__device__ __forceinline__ float sum_of_squares(const Vector<T>& v) {
    float sum = 0;
#pragma unroll
    for (const T& x : v.element) sum = exact::add(sum, exact::mul(x.value(), x.value()));
    return sum;
}

/// Entries `at`, `at + 1`, ... of a table: two accesses where fp32 entries are aligned.
template <class T>
__device__ __forceinline__ void load_entries(float (&to)[kVector], const Rotary& r,
                                             const void* table, std::int64_t at) {
    const auto* entry = static_cast<const float*>(table) + at;
    if (r.table_fp32 && reinterpret_cast<std::uintptr_t>(entry) % 16 == 0) {
        const float4 low = reinterpret_cast<const float4*>(entry)[0];
        const float4 high = reinterpret_cast<const float4*>(entry)[1];
        memcpy(&to[0], &low, sizeof low);
        memcpy(&to[4], &high, sizeof high);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) to[j] = table_entry<T>(r, table, at + j);
}

/// The table's entries for elements [first, first + 8) of a head.
template <class T>
__device__ __forceinline__ void load_table(float (&cos)[kVector], float (&sin)[kVector],
                                           const Rotary& r, std::int64_t base, int first) {
    const bool run =
        r.step == 1 && (r.table == RotaryTable::kPerDim || r.kind == RotaryKind::kHalf);
    if (run) {
        const std::int64_t at = base + cos_index(r, pair_of(r.kind, r.dims, first), first);
        load_entries<T>(cos, r, r.cos, at);
        load_entries<T>(sin, r, r.sin, at);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const Pair pair = pair_of(r.kind, r.dims, first + j);
        cos[j] =
            table_entry<T>(r, r.cos, base + std::int64_t{cos_index(r, pair, first + j)} * r.step);
        sin[j] =
            table_entry<T>(r, r.sin, base + std::int64_t{sin_index(r, pair, first + j)} * r.step);
    }
}

template <class T>
__device__ __forceinline__ void normalise(float (&y)[kVector], const Vector<T>& x, const Norm& norm,
                                          float rstd, std::int64_t weight) {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
        y[j] = normalised<T>(norm, x.element[j].value(), rstd, weight + j);
}

/// A head's elements of this lane, normalised and rotated.
template <class T>
__device__ __forceinline__ void transform(const HeadScatter& s, Vector<T>& x,
                                          const Vector<T>& other, float rstd, int head, int first,
                                          int partner, const float (&cos)[kVector],
                                          const float (&sin)[kVector]) {
    float own[kVector], turned[kVector];
    const std::int64_t weight =
        s.norm.kind == NormKind::kFullWidth ? std::int64_t{head} * s.head_dim : 0;
    const bool norm = s.norm.kind != NormKind::kNone;
    const bool half = s.rotary.kind == RotaryKind::kHalf;
    const bool rotates = s.rotary.kind != RotaryKind::kNone && first < s.rotary.dims;
#pragma unroll
    for (int j = 0; j < kVector; ++j)
        own[j] = norm ? normalised<T>(s.norm, x.element[j].value(), rstd, weight + first + j)
                      : x.element[j].value();
    if (half && rotates) {
#pragma unroll
        for (int j = 0; j < kVector; ++j)
            turned[j] =
                norm ? normalised<T>(s.norm, other.element[j].value(), rstd, weight + partner + j)
                     : other.element[j].value();
    } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) turned[j] = own[j ^ 1];
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const bool leads = half ? first < s.rotary.dims / 2 : j % 2 == 0;
        x.element[j] = T::from(
            rotates ? rotated<T>(s.rotary.math, leads, own[j], turned[j], cos[j], sin[j]) : own[j]);
    }
}

/// `kPlain`: neither norm nor rotation, as for V.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kThreads)
    send_vectors(const __grid_constant__ HeadScatter s, int total, int lanes, std::int64_t count) {
    constexpr int kInFlight = kPlain ? kPlainHeads : kHeads;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const unsigned base = threadIdx.x % 32 / lanes * lanes;
    const unsigned mask = (lanes == 32 ? ~0u : (1u << lanes) - 1u) << base;
    const int first = lane * kVector;
    const bool holds = first < s.head_dim;
    const std::int64_t groups = std::int64_t{gridDim.x} * (kThreads / lanes);
    const std::int64_t rows = s.rows * s.batch;
    const bool half = s.rotary.kind == RotaryKind::kHalf && first < s.rotary.dims;
    const bool rotates = s.rotary.kind != RotaryKind::kNone && first < s.rotary.dims;
    const int partner = half ? pair_of(s.rotary.kind, s.rotary.dims, first).partner : first;

    for (std::int64_t i = std::int64_t{blockIdx.x} * (kThreads / lanes) + threadIdx.x / lanes;
         i < count; i += groups) {
        const Work work = work_at<kInFlight>(s, rows, total, i);
        const auto b = static_cast<int>(work.row / s.rows);
        const std::int64_t row = work.row % s.rows;
        const std::int64_t axis = axis_row(s.map, s.map_rank, row);
        const T* from = static_cast<const T*>(s.from) + b * s.from_batch + row * s.from_row;
        T* to[kInFlight];
        int head[kInFlight];
        int peer = work.destination;
        int in_peer = work.head;
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
            while (work.onward && k < work.heads && in_peer >= s.head_count[peer]) {
                in_peer = 0;
                peer = peer + 1 == s.world ? 0 : peer + 1;
            }
            head[k] = s.first_head[peer] + in_peer;
            to[k] = static_cast<T*>(s.to[peer]) + b * s.to_batch[peer] + axis * s.to_row[peer] +
                    std::int64_t{in_peer} * s.head_dim;
            ++in_peer;
        }
        Vector<T> x[kInFlight] = {};
        Vector<T> other[kInFlight] = {};
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
            if (k >= work.heads || !holds) continue;
            x[k] = load(from + head[k] * s.from_head + first);
            if (!kPlain && half) other[k] = load(from + head[k] * s.from_head + partner);
        }
        if constexpr (!kPlain) {
            float cos[kVector] = {}, sin[kVector] = {};
            const std::int64_t table = b * s.rotary.batch_stride + row * s.rotary.row_stride;
#pragma unroll
            for (int k = 0; k < kInFlight; ++k) {
                if (k >= work.heads) continue;
                float rstd = 1;
                if (s.norm.kind == NormKind::kPerHead) {
                    const float sum = sum_over(holds ? sum_of_squares(x[k]) : 0.0f, lanes, mask);
                    rstd = exact::rsqrt(
                        exact::add(__fdiv_rn(sum, static_cast<float>(s.head_dim)), s.norm.eps));
                } else if (s.norm.kind == NormKind::kFullWidth) {
                    rstd = s.rstd[work.row];
                }
                if (rotates && (k == 0 || s.rotary.head_stride != 0))
                    load_table<T>(cos, sin, s.rotary, table + head[k] * s.rotary.head_stride,
                                  first);
                if (holds) transform<T>(s, x[k], other[k], rstd, head[k], first, partner, cos, sin);
            }
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
            if (k >= work.heads || !holds) continue;
            uint4 raw;
            memcpy(&raw, &x[k], sizeof raw);
            *reinterpret_cast<uint4*>(to[k] + first) = raw;
        }
    }
}

/// Any head dimension and alignment, a warp to a (row, destination), element by element.
template <class T>
__global__ void __launch_bounds__(kThreads) send_elements(const __grid_constant__ HeadScatter s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t rows = s.rows * s.batch;
    const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
    for (std::int64_t i = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
         i < rows * s.world; i += warps) {
        const SendStep step = send_step(s.order, s.rank, s.world, rows, i);
        const auto b = static_cast<int>(step.row / s.rows);
        const std::int64_t row = step.row % s.rows;
        const int peer = step.destination;
        for (int h = 0; h < s.head_count[peer]; ++h) {
            const int head = s.first_head[peer] + h;
            const T* x = static_cast<const T*>(s.from) + b * s.from_batch + row * s.from_row +
                         head * s.from_head;
            T* y = static_cast<T*>(s.to[peer]) + b * s.to_batch[peer] +
                   axis_row(s.map, s.map_rank, row) * s.to_row[peer] + std::int64_t{h} * s.head_dim;
            float rstd = 1;
            if (s.norm.kind == NormKind::kFullWidth) rstd = s.rstd[step.row];
            if (s.norm.kind == NormKind::kPerHead) {
                float mine = 0;
                for (int g = lane; g * kSumGroup < s.head_dim; g += 32) {
                    float sum = 0;
                    for (int e = g * kSumGroup; e < min(s.head_dim, (g + 1) * kSumGroup); ++e)
                        sum = exact::add(sum, exact::mul(x[e].value(), x[e].value()));
                    mine = exact::add(mine, sum);
                }
                mine = sum_over(mine, 32, ~0u);
                rstd = exact::rsqrt(
                    exact::add(__fdiv_rn(mine, static_cast<float>(s.head_dim)), s.norm.eps));
            }
            const std::int64_t weight =
                s.norm.kind == NormKind::kFullWidth ? std::int64_t{head} * s.head_dim : 0;
            const auto value = [&](int e) {
                return s.norm.kind == NormKind::kNone
                           ? x[e].value()
                           : normalised<T>(s.norm, x[e].value(), rstd, weight + e);
            };
            const Rotary& r = s.rotary;
            const int dims = r.kind == RotaryKind::kNone ? 0 : r.dims;
            const std::int64_t table =
                b * r.batch_stride + row * r.row_stride + head * r.head_stride;
            for (int e = lane; e < s.head_dim; e += 32) {
                if (e >= dims) {
                    y[e] = T::from(value(e));
                    continue;
                }
                const Pair pair = pair_of(r.kind, dims, e);
                const float cos =
                    table_entry<T>(r, r.cos, table + std::int64_t{cos_index(r, pair, e)} * r.step);
                const float sin =
                    table_entry<T>(r, r.sin, table + std::int64_t{sin_index(r, pair, e)} * r.step);
                y[e] = T::from(
                    rotated<T>(r.math, pair.first, value(e), value(pair.partner), cos, sin));
            }
        }
    }
}

/// A block to a row.
template <class T>
__global__ void __launch_bounds__(kRowLanes) sum_rows(const __grid_constant__ HeadScatter s) {
    __shared__ float warp_sum[kRowLanes / 32];
    const std::int64_t width = std::int64_t{s.heads} * s.head_dim;
    for (std::int64_t i = blockIdx.x; i < s.rows * s.batch; i += gridDim.x) {
        const T* x =
            static_cast<const T*>(s.from) + i / s.rows * s.from_batch + i % s.rows * s.from_row;
        float mine = 0;
        for (std::int64_t g = threadIdx.x; g * kSumGroup < width; g += kRowLanes) {
            float sum = 0;
            const std::int64_t e = g * kSumGroup;
            const T* at = x + e / s.head_dim * s.from_head + e % s.head_dim;
            bool vector = false;
            if constexpr (sizeof(T) == 2)
                vector =
                    s.head_dim % kVector == 0 && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
            if (vector) {
                if constexpr (sizeof(T) == 2) sum = sum_of_squares(load(at));
            } else {
                for (std::int64_t j = e; j < min(width, e + kSumGroup); ++j) {
                    const float v = x[j / s.head_dim * s.from_head + j % s.head_dim].value();
                    sum = exact::add(sum, exact::mul(v, v));
                }
            }
            mine = exact::add(mine, sum);
        }
        mine = sum_over(mine, 32, ~0u);
        if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = mine;
        __syncthreads();
        if (threadIdx.x == 0) {
            float sum = warp_sum[0];
            for (int w = 1; w < kRowLanes / 32; ++w) sum = exact::add(sum, warp_sum[w]);
            s.rstd[i] =
                exact::rsqrt(exact::add(__fdiv_rn(sum, static_cast<float>(width)), s.norm.eps));
        }
        __syncthreads();
    }
}

bool vectors_fit(const HeadScatter& s) {
    std::uint64_t bits = reinterpret_cast<std::uint64_t>(s.from) / 2;
    for (std::int64_t stride : {s.from_batch, s.from_row, s.from_head})
        bits |= static_cast<std::uint64_t>(stride);
    if (reinterpret_cast<std::uint64_t>(s.from) % 16 != 0 || bits % kVector != 0) return false;
    if (s.head_dim % kVector != 0 || s.head_dim > 32 * kVector) return false;
    if (s.rotary.kind == RotaryKind::kNone) return true;
    return s.rotary.dims % (s.rotary.kind == RotaryKind::kHalf ? 2 * kVector : kVector) == 0;
}

unsigned grid_of(const HeadScatter& s, std::int64_t wanted) {
    constexpr std::int64_t kMostBlocks = 1056;  // eight per SM
    const std::int64_t most = s.blocks > 0 ? s.blocks : kMostBlocks;
    return static_cast<unsigned>(std::max<std::int64_t>(1, std::min(wanted, most)));
}

template <class T, bool kPlain>
cudaError_t launch_vectors(const HeadScatter& s, cudaStream_t stream) {
    int lanes = 1;
    while (lanes * kVector < s.head_dim) lanes *= 2;
    const std::int64_t count = work_count < kPlain ? kPlainHeads : kHeads > (s);
    const std::int64_t per_block = kThreads / lanes;
    send_vectors<T, kPlain>
        <<<grid_of(s, (count + per_block - 1) / per_block), kThreads, 0, stream>>>(s, sent_heads(s),
                                                                                   lanes, count);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_type(const HeadScatter& s, cudaStream_t stream) {
    if constexpr (sizeof(T) == 2) {
        if (vectors_fit(s)) {
            const bool plain = s.norm.kind == NormKind::kNone && s.rotary.kind == RotaryKind::kNone;
            return plain ? launch_vectors<T, true>(s, stream) : launch_vectors<T, false>(s, stream);
        }
    }
    const std::int64_t warps = s.rows * s.batch * s.world;
    send_elements<T><<<grid_of(s, (warps + 7) / 8), kThreads, 0, stream>>>(s);
    return cudaGetLastError();
}

}  // namespace

cudaError_t send_heads(const HeadScatter& s, cudaStream_t stream) {
    if (s.rows == 0 || sent_heads(s) == 0) return cudaSuccess;
    switch (s.dtype) {
        case fabric::DType::kBf16:
            return launch_type<Bf16>(s, stream);
        case fabric::DType::kF16:
            return launch_type<Fp16>(s, stream);
        case fabric::DType::kF32:
            return launch_type<Fp32>(s, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t row_rstd(const HeadScatter& s, cudaStream_t stream) {
    const unsigned grid = grid_of(s, s.rows * s.batch);
    switch (s.dtype) {
        case fabric::DType::kBf16:
            sum_rows<Bf16><<<grid, kRowLanes, 0, stream>>>(s);
            break;
        case fabric::DType::kF16:
            sum_rows<Fp16><<<grid, kRowLanes, 0, stream>>>(s);
            break;
        case fabric::DType::kF32:
            sum_rows<Fp32><<<grid, kRowLanes, 0, stream>>>(s);
            break;
        default:
            return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

template <class T>
cudaError_t preload_vectors() {
    cudaFuncAttributes a{};
    const void* kernels[] = {reinterpret_cast<const void*>(send_vectors<T, true>),
                             reinterpret_cast<const void*>(send_vectors<T, false>),
                             reinterpret_cast<const void*>(send_elements<T>),
                             reinterpret_cast<const void*>(sum_rows<T>)};
    cudaError_t error = cudaSuccess;
    for (const void* kernel : kernels)
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, kernel);
    return error;
}

cudaError_t preload() {
    cudaError_t error = preload_scatter();
    if (error == cudaSuccess) error = preload_vectors<Bf16>();
    if (error == cudaSuccess) error = preload_vectors<Fp16>();
    return error;
}

}  // namespace xstage::ulysses::kernels
