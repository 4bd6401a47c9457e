// The first all-to-all of Ulysses: each head of a projection goes to the rank that computes it.
//
//   to[p][b, map(row), h] = rotate(normalise(from[b, row, first_head[p] + h]))
//
// One launch for up to three projections, V's before Q's and K's. A group of lanes holds a head, 8
// elements a lane, so every load and store is 16 bytes and a store of a head is one run. A group
// takes a few heads of one row in the sender's order (order.hpp) and loads them before it works on
// the first. Rows and heads are found by steps: a division of 64 bits for each would cost as much
// as the copy itself.

#include <algorithm>
#include <array>
#include <atomic>

#include "ulysses/lanes.cuh"

namespace xstage::ulysses::kernels {

cudaError_t preload_scatter();
cudaError_t preload_elements();
cudaError_t send_by_elements(const HeadScatter& scatter, cudaStream_t stream);

namespace {

// Heads in flight per group. 64 bytes a thread hide memory's latency; with arithmetic between, 32
// do beside more warps, since registers are what warps are short of then.
template <bool kPlain>
constexpr int kInFlight = kPlain ? 4 : 2;

bool is_plain(const HeadScatter& s) {
    return s.norm.kind == NormKind::kNone && s.rotary.kind == RotaryKind::kNone;
}

/// The group of lanes that this thread belongs to.
struct Group {
    int lanes, first;  ///< first: element of the head
    unsigned mask;
    std::int64_t index, count;  ///< among all groups of the launch
};

/// Rows of a part with the heads that go out in one walk: of all destinations in turn, or of one.
struct Walk {
    int to;  ///< of row 0's first head; with `turns` the next row begins one further
    bool turns;
    int heads;
    int pieces;  ///< of a row
};

template <bool kPlain>
__device__ __forceinline__ Walk walk_of(const HeadScatter& s, int turn) {
    const std::int64_t rows = s.rows * s.batch;
    Walk w{};
    w.turns = s.order == SendOrder::kInterleaved;
    w.to = send_step(s.order, s.rank, s.world, rows, w.turns ? 0 : turn * rows).destination;
    w.heads = w.turns ? sent_heads(s) : s.head_count[w.to];
    w.pieces = (w.heads + kInFlight<kPlain> - 1) / kInFlight<kPlain>;
    return w;
}

__device__ __forceinline__ int next_of(const HeadScatter& s, int peer) {
    return peer + 1 == s.world ? 0 : peer + 1;
}

/// Heads [slot, slot + heads) of the walk over one row.
template <class T, bool kPlain>
__device__ __forceinline__ void send_piece(const HeadScatter& s, const Group& g, const LaneNorm& n,
                                           int b, std::int64_t row, int to, int slot, int heads) {
    constexpr int kMost = kInFlight<kPlain>;
    const int first = g.first;
    const bool holds = first < s.head_dim;
    const std::int64_t axis = axis_row(s.map, s.map_rank, row);
    const T* from = static_cast<const T*>(s.from) + b * s.from_batch + row * s.from_row;
    const auto place = [&](int peer) {
        return static_cast<T*>(s.to[peer]) + b * s.to_batch[peer] + axis * s.to_row[peer];
    };
    while (slot >= s.head_count[to]) {
        slot -= s.head_count[to];
        to = next_of(s, to);
    }
    T* row_there = place(to);
    T* dest[kMost];
    int head[kMost];
    Vector<T> x[kMost] = {};
    Vector<T> other[kMost] = {};
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
        while (k < heads && slot >= s.head_count[to]) {
            slot = 0;
            to = next_of(s, to);
            row_there = place(to);
        }
        head[k] = s.first_head[to] + slot;
        dest[k] = row_there + slot * s.head_dim;
        ++slot;
        if (k >= heads || !holds) continue;
        x[k] = load(from + head[k] * s.from_head + first);
        if (!kPlain && n.half) other[k] = load(from + head[k] * s.from_head + n.partner);
    }
    if constexpr (!kPlain) {
        float cos[kVector] = {}, sin[kVector] = {};
        const std::int64_t table = b * s.rotary.batch_stride + row * s.rotary.row_stride;
#pragma unroll
        for (int k = 0; k < kMost; ++k) {
            if (k >= heads) continue;
            float rstd = 1;
            if (s.norm.kind == NormKind::kPerHead) {
                const float sum = sum_over(holds ? sum_of_squares(x[k]) : 0.0f, g.lanes, g.mask);
                const float mean = n.reciprocal != 0
                                       ? exact::mul(sum, n.reciprocal)
                                       : __fdiv_rn(sum, static_cast<float>(s.head_dim));
                rstd = exact::rsqrt(exact::add(mean, s.norm.eps));
            } else if (s.norm.kind == NormKind::kFullWidth) {
                rstd = s.rstd[b * s.rows + row];
            }
            if (n.rotates && (k == 0 || s.rotary.head_stride != 0))
                load_table<T>(cos, sin, s.rotary, table + head[k] * s.rotary.head_stride, first);
            if (holds) transform<T>(s, n, first, head[k], rstd, x[k], other[k], cos, sin);
        }
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
        if (k >= heads || !holds) continue;
        uint4 raw;
        memcpy(&raw, &x[k], sizeof raw);
        *reinterpret_cast<uint4*>(dest[k] + first) = raw;
    }
}

/// This group's pieces of one part, beginning with number `i` of all of them. Returns the number of
/// the first piece beyond, counted from the part's end.
template <class T, bool kPlain>
__device__ __forceinline__ std::int64_t send_part(const HeadScatter& s, const Group& g,
                                                  std::int64_t i) {
    const LaneNorm n = kPlain ? LaneNorm{} : lane_norm<T>(s, g.first);
    const std::int64_t rows = s.rows * s.batch;
    const int turns = s.order == SendOrder::kInterleaved ? 1 : s.world;
    for (int turn = 0; turn < turns; ++turn) {
        const Walk w = walk_of<kPlain>(s, turn);
        const std::int64_t count = rows * w.pieces;
        if (i >= count) {
            i -= count;
            continue;
        }
        std::int64_t row = i / w.pieces;
        int piece = static_cast<int>(i - row * w.pieces);
        int to = w.turns ? static_cast<int>((w.to + row) % s.world) : w.to;
        int b = static_cast<int>(row / s.rows);
        row -= b * s.rows;
        const int row_step = static_cast<int>(g.count) / w.pieces;
        const int piece_step = static_cast<int>(g.count) - row_step * w.pieces;
        const int to_step = w.turns ? row_step % s.world : 0;
        for (; i < count; i += g.count) {
            const int slot = piece * kInFlight<kPlain>;
            send_piece<T, kPlain>(s, g, n, b, row, to, slot,
                                  min(kInFlight<kPlain>, w.heads - slot));
            piece += piece_step;
            const int carry = piece >= w.pieces ? 1 : 0;
            piece -= carry != 0 ? w.pieces : 0;
            to += to_step + (w.turns ? carry : 0);
            if (to >= s.world) to -= s.world;
            row += row_step + carry;
            if (row >= s.rows) {
                b += static_cast<int>(row / s.rows);
                row %= s.rows;
            }
        }
        i -= count;
    }
    return i;
}

/// `kPlain`: no part has a norm or a rotation.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kThreads, kPlain ? 4 : 2)
    send_vectors(const __grid_constant__ HeadExchange all, int lanes, unsigned plain_parts) {
    Group g{};
    g.lanes = lanes;
    g.first = static_cast<int>(threadIdx.x) % lanes * kVector;
    g.mask = (lanes == 32 ? ~0u : (1u << lanes) - 1u) << (threadIdx.x % 32 / lanes * lanes);
    const int per_block = kThreads / lanes;
    g.count = std::int64_t{gridDim.x} * per_block;
    std::int64_t i = std::int64_t{blockIdx.x} * per_block + threadIdx.x / lanes;
    for (int p = 0; p < all.count; ++p) {
        const HeadScatter& s = all.part[p];
        if (kPlain || (plain_parts >> p & 1) != 0) {
            i = send_part<T, true>(s, g, i);
        } else {
            i = send_part<T, false>(s, g, i);
        }
    }
}

bool vectors_fit(const HeadScatter& s) {
    if (s.dtype != fabric::DType::kBf16 && s.dtype != fabric::DType::kF16) return false;
    std::uint64_t bits = reinterpret_cast<std::uint64_t>(s.from) / 2;
    for (std::int64_t stride : {s.from_batch, s.from_row, s.from_head})
        bits |= static_cast<std::uint64_t>(stride);
    if (reinterpret_cast<std::uint64_t>(s.from) % 16 != 0 || bits % kVector != 0) return false;
    if (s.head_dim % kVector != 0 || s.head_dim > 32 * kVector) return false;
    if (s.rotary.kind == RotaryKind::kNone) return true;
    return s.rotary.dims % (s.rotary.kind == RotaryKind::kHalf ? 2 * kVector : kVector) == 0;
}

/// Pieces of all parts together.
std::int64_t piece_count(const HeadExchange& all) {
    std::int64_t count = 0;
    for (int i = 0; i < all.count; ++i) {
        const HeadScatter& s = all.part[i];
        const int in_flight = is_plain(s) ? kInFlight<true> : kInFlight<false>;
        const auto pieces = [&](int heads) { return (heads + in_flight - 1) / in_flight; };
        int of_row = 0;
        if (s.order == SendOrder::kInterleaved) {
            of_row = pieces(sent_heads(s));
        } else {
            for (int p = 0; p < s.world; ++p) of_row += pieces(s.head_count[p]);
        }
        count += of_row * s.rows * s.batch;
    }
    return count;
}

/// As many blocks as the GPU holds at once: a second wave of a grid-stride loop would find the GPU
/// half empty. Asked once a device: the question costs the host more than a launch.
template <class T, bool kPlain>
cudaError_t resident_blocks(int& blocks) {
    constexpr int kDevices = 64;
    static std::array<std::atomic<int>, kDevices> known{};
    int device = 0, processors = 0, per_processor = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess && device < kDevices) {
        blocks = known[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
        if (blocks > 0) return cudaSuccess;
    }
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor,
                                                              send_vectors<T, kPlain>, kThreads, 0);
    blocks = processors * std::max(1, per_processor);
    if (error == cudaSuccess && device < kDevices)
        known[static_cast<std::size_t>(device)].store(blocks, std::memory_order_relaxed);
    return error;
}

template <class T, bool kPlain>
cudaError_t launch_vectors(const HeadExchange& all, unsigned plain_parts, cudaStream_t stream) {
    int lanes = 1;
    while (lanes * kVector < all.part[0].head_dim) lanes *= 2;
    const std::int64_t per_block = kThreads / lanes;
    int most = all.part[0].blocks;
    if (most == 0)
        if (const cudaError_t error = resident_blocks<T, kPlain>(most); error != cudaSuccess)
            return error;
    const auto blocks = static_cast<unsigned>(
        std::clamp<std::int64_t>((piece_count(all) + per_block - 1) / per_block, 1, most));
    send_vectors<T, kPlain><<<blocks, kThreads, 0, stream>>>(all, lanes, plain_parts);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_together(const HeadExchange& all, cudaStream_t stream) {
    unsigned plain_parts = 0;
    for (int i = 0; i < all.count; ++i) plain_parts |= is_plain(all.part[i]) ? 1u << i : 0u;
    return plain_parts + 1 == 1u << all.count ? launch_vectors<T, true>(all, plain_parts, stream)
                                              : launch_vectors<T, false>(all, plain_parts, stream);
}

cudaError_t launch_any(const HeadExchange& all, cudaStream_t stream) {
    return all.part[0].dtype == fabric::DType::kBf16 ? launch_together<Bf16>(all, stream)
                                                     : launch_together<Fp16>(all, stream);
}

template <class T>
cudaError_t preload_vectors() {
    cudaFuncAttributes a{};
    cudaError_t error = cudaFuncGetAttributes(&a, send_vectors<T, true>);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, send_vectors<T, false>);
    return error;
}

}  // namespace

cudaError_t send_heads(const HeadExchange& given, cudaStream_t stream) {
    // The usual case, without a copy of some 3 kB.
    bool together = given.count > 0;
    for (int i = 0; i < given.count; ++i) {
        const HeadScatter& s = given.part[i];
        together = together && s.rows > 0 && sent_heads(s) > 0 && vectors_fit(s);
    }
    if (together) return launch_any(given, stream);
    HeadExchange all;
    for (int i = 0; i < given.count; ++i) {
        const HeadScatter& s = given.part[i];
        if (s.rows == 0 || sent_heads(s) == 0) continue;
        if (vectors_fit(s)) {
            all.part[all.count++] = s;
            continue;
        }
        if (const cudaError_t error = send_by_elements(s, stream); error != cudaSuccess)
            return error;
    }
    return all.count == 0 ? cudaSuccess : launch_any(all, stream);
}

cudaError_t preload() {
    cudaError_t error = preload_scatter();
    if (error == cudaSuccess) error = preload_elements();
    if (error == cudaSuccess) error = preload_vectors<Bf16>();
    if (error == cudaSuccess) error = preload_vectors<Fp16>();
    return error;
}

}  // namespace xstage::ulysses::kernels
