// The first all-to-all of Ulysses: each head of a projection goes to the rank that computes it.
//
//   to[p][b, map(row), h] = rotate(normalise(from[b, row, first_head[p] + h]))
//
// One launch for up to three projections, V's before Q's and K's. A group of lanes holds a head, 8
// elements a lane, so every load and store is 16 bytes and a store of a head is one run. A group
// takes a piece of a row, a run of heads in the sender's order (order.hpp), and loads some before
// it works on the first. Rows and heads are found by steps: a division of 64 bits for each would
// cost as much as the copy itself.

#include <algorithm>
#include <array>
#include <atomic>

#include "ulysses/lanes.cuh"
#include "ulysses/walks.hpp"

namespace xstage::ulysses::kernels {

cudaError_t preload_scatter();
cudaError_t preload_elements();
cudaError_t send_by_elements(const HeadScatter& scatter, cudaStream_t stream);

namespace {

/// What a launch is compiled for: the most that any of its parts asks for.
enum class Work {
    kCopy,
    kPairs,   ///< norms, and rotations of neighbours
    kHalves,  ///< and of elements half a head apart
};

// Heads in flight per group. 64 bytes a thread hide memory's latency. With arithmetic between,
// there are as many: two heads on their way while two are worked on.
template <Work kWork>
constexpr int kInFlight = kWork == Work::kCopy ? 4 : 2;

/// Heads of a piece with arithmetic, at most: its rotation table, larger than a head, is loaded
/// once.
constexpr int kLongestPiece = 16;

/// The group of lanes that this thread belongs to.
struct Group {
    int lanes, first;  ///< first: element of the head
    bool holds;        ///< elements of the head at all
    unsigned mask;
    std::int64_t index, count;  ///< among all groups of the launch
};

/// Goes over the heads of a piece, from destination to destination.
template <class T>
struct HeadCursor {
    const HeadScatter& s;
    std::int64_t axis, batch;
    int to, slot;
    T* row_there;

    __device__ __forceinline__ HeadCursor(const HeadScatter& scatter, const Piece& piece)
        : s(scatter),
          axis(axis_row(s.map, s.map_rank, piece.row)),
          batch(piece.b),
          to(piece.to),
          slot(piece.slot) {
        while (slot >= s.head_count[to]) pass();
        find_row();
    }
    __device__ __forceinline__ void pass() {
        slot -= s.head_count[to];
        if (++to == s.world) to = 0;
    }
    __device__ __forceinline__ void find_row() {
        row_there = static_cast<T*>(s.to[to]) + batch * s.to_batch[to] + axis * s.to_row[to];
    }
    /// The next head and its place.
    __device__ __forceinline__ int next(T*& place) {
        if (slot >= s.head_count[to]) {
            while (slot >= s.head_count[to]) pass();
            find_row();
        }
        place = row_there + slot * s.head_dim;
        return s.first_head[to] + slot++;
    }
};

/// Heads that a group has loaded, or has begun to.
template <class T, Work kWork>
struct Flight {
    static constexpr int kHeads = kInFlight<kWork>;
    int count;
    int head[kHeads];
    T* place[kHeads];
    Vector<T> x[kHeads];
    Vector<T> other[kWork == Work::kHalves ? kHeads : 1];  ///< what halves are rotated with

    /// The next ones of `from`, a row of the projection. No load depends on a condition, else each
    /// would be waited for by itself: in place of what is not there, the last one is loaded again.
    __device__ __forceinline__ void load_next(HeadCursor<T>& cursor, const T* from, int left,
                                              const Group& g, const LaneNorm& n) {
        count = min(left, kHeads);
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            head[k] = k == 0 || k < left ? cursor.next(place[k]) : head[k - 1];
        }
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            const T* at = from + head[k] * cursor.s.from_head;
            x[k] = load(at + (g.holds ? g.first : 0));
            if (kWork == Work::kHalves) other[k] = load(at + n.partner);
        }
    }
    __device__ __forceinline__ void store(const Group& g) const {
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            if (k < count && g.holds) store_global(place[k] + g.first, x[k]);
        }
    }
};

template <class T>
__device__ __forceinline__ float rstd_of(const HeadScatter& s, const Group& g, const LaneNorm& n,
                                         const Piece& piece, const Vector<T>& x) {
    if (s.norm.kind == NormKind::kFullWidth) return s.rstd[piece.b * s.rows + piece.row];
    if (s.norm.kind == NormKind::kNone) return 1;
    const float sum = sum_over(g.holds ? sum_of_squares(x) : 0.0f, g.lanes, g.mask);
    const float mean = n.reciprocal != 0 ? exact::mul(sum, n.reciprocal)
                                         : __fdiv_rn(sum, static_cast<float>(s.head_dim));
    return exact::rsqrt(exact::add(mean, s.norm.eps));
}

template <class T, Work kWork>
__device__ __forceinline__ void send_piece(const HeadScatter& s, const Group& g, const LaneNorm& n,
                                           const Piece& piece) {
    HeadCursor<T> cursor(s, piece);
    const T* from = static_cast<const T*>(s.from) + piece.b * s.from_batch + piece.row * s.from_row;
    Flight<T, kWork> now;
    int left = piece.heads;
    now.load_next(cursor, from, left, g, n);
    if constexpr (kWork == Work::kCopy) {
        now.store(g);
    } else {
        constexpr bool kAhead = kWork == Work::kPairs;  // halves take the registers themselves
        float cos[kVector] = {}, sin[kVector] = {};
        const std::int64_t table =
            piece.b * s.rotary.batch_stride + piece.row * s.rotary.row_stride;
        const bool one_table = s.rotary.head_stride == 0;
        if (n.rotates && one_table) load_table<T>(cos, sin, s.rotary, table, g.first);
        while (true) {
            left -= now.kHeads;
            Flight<T, kWork> then;
            if (kAhead && left > 0) then.load_next(cursor, from, left, g, n);
#pragma unroll
            for (int k = 0; k < now.kHeads; ++k) {
                if (k >= now.count) continue;
                const float rstd = rstd_of(s, g, n, piece, now.x[k]);
                if (n.rotates && !one_table) {
                    const std::int64_t at = table + now.head[k] * s.rotary.head_stride;
                    load_table<T>(cos, sin, s.rotary, at, g.first);
                }
                const int other = kWork == Work::kHalves ? k : 0;
                if (g.holds)
                    transform<T, kWork == Work::kHalves>(s, n, g.first, now.head[k], rstd, now.x[k],
                                                         now.other[other], cos, sin);
            }
            now.store(g);
            if (left <= 0) break;
            if constexpr (kAhead) {
                now = then;
            } else {
                now.load_next(cursor, from, left, g, n);
            }
        }
    }
}

/// This group's pieces of one walk, beginning with number `i` of all of them. Returns the number of
/// the first piece beyond, counted from the walk's end.
template <class T, Work kWork>
__device__ __forceinline__ std::int64_t send_walk(const HeadScatter& s, const Walk& w,
                                                  const Group& g, std::int64_t i) {
    const LaneNorm n = kWork == Work::kCopy ? LaneNorm{} : lane_norm<T>(s, g.first);
    for (PieceCursor at(s, w, i); i < w.count; i += g.count, at.advance(s, w))
        send_piece<T, kWork>(s, g, n, at.piece(w));
    return i - w.count;
}

/// `plain_parts` have no norm and no rotation.
template <class T, Work kWork>
__global__ void __launch_bounds__(kThreads, kWork == Work::kCopy ? 4 : 2)
    send_vectors(const __grid_constant__ HeadExchange all, const __grid_constant__ Walks walks,
                 int lanes, unsigned plain_parts) {
    Group g{};
    g.lanes = lanes;
    g.first = static_cast<int>(threadIdx.x) % lanes * kVector;
    g.holds = g.first < all.part[0].head_dim;
    g.mask = (lanes == 32 ? ~0u : (1u << lanes) - 1u) << (threadIdx.x % 32 / lanes * lanes);
    const int per_block = kThreads / lanes;
    g.count = std::int64_t{gridDim.x} * per_block;
    std::int64_t i = std::int64_t{blockIdx.x} * per_block + threadIdx.x / lanes;
    for (int w = 0; w < walks.count; ++w) {
        const Walk& walk = walks.walk[w];
        const int p = walks.part[w];
        if (i >= walk.count) {
            i -= walk.count;
        } else if (kWork == Work::kCopy || (plain_parts >> p & 1) != 0) {
            i = send_walk<T, Work::kCopy>(all.part[p], walk, g, i);
        } else {
            i = send_walk<T, kWork>(all.part[p], walk, g, i);
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

/// As many blocks as the GPU holds at once: a second wave of a grid-stride loop would find the GPU
/// half empty. Asked once a device: the question costs the host more than a launch.
template <class T, Work kWork>
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
                                                              send_vectors<T, kWork>, kThreads, 0);
    blocks = processors * std::max(1, per_processor);
    if (error == cudaSuccess && device < kDevices)
        known[static_cast<std::size_t>(device)].store(blocks, std::memory_order_relaxed);
    return error;
}

template <class T, Work kWork>
cudaError_t launch_vectors(const HeadExchange& all, unsigned plain_parts, cudaStream_t stream) {
    int lanes = 1;
    while (lanes * kVector < all.part[0].head_dim) lanes *= 2;
    const std::int64_t per_block = kThreads / lanes;
    int most = all.part[0].blocks;
    if (most == 0)
        if (const cudaError_t error = resident_blocks<T, kWork>(most); error != cudaSuccess)
            return error;
    int longest = kLongestPiece;  // while every group still gets one
    Walks walks = walks_of(all, kInFlight<Work::kCopy>, longest);
    while (longest > kInFlight<kWork> && walks.pieces() < most * per_block)
        walks = walks_of(all, kInFlight<Work::kCopy>, longest /= 2);
    const auto blocks = static_cast<unsigned>(
        std::clamp<std::int64_t>((walks.pieces() + per_block - 1) / per_block, 1, most));
    set_steps(all, walks, blocks * per_block);
    send_vectors<T, kWork><<<blocks, kThreads, 0, stream>>>(all, walks, lanes, plain_parts);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_together(const HeadExchange& all, cudaStream_t stream) {
    unsigned plain_parts = 0;
    bool halves = false;
    for (int i = 0; i < all.count; ++i) {
        plain_parts |= is_plain(all.part[i]) ? 1u << i : 0u;
        halves |= all.part[i].rotary.kind == RotaryKind::kHalf;
    }
    if (halves) return launch_vectors<T, Work::kHalves>(all, plain_parts, stream);
    return plain_parts + 1 == 1u << all.count
               ? launch_vectors<T, Work::kCopy>(all, plain_parts, stream)
               : launch_vectors<T, Work::kPairs>(all, plain_parts, stream);
}

cudaError_t launch_any(const HeadExchange& all, cudaStream_t stream) {
    return all.part[0].dtype == fabric::DType::kBf16 ? launch_together<Bf16>(all, stream)
                                                     : launch_together<Fp16>(all, stream);
}

template <class T>
cudaError_t preload_vectors() {
    cudaFuncAttributes a{};
    cudaError_t error = cudaFuncGetAttributes(&a, send_vectors<T, Work::kCopy>);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, send_vectors<T, Work::kPairs>);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, send_vectors<T, Work::kHalves>);
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
