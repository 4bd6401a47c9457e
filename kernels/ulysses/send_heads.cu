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

bool is_plain(const HeadScatter& s) {
    return s.norm.kind == NormKind::kNone && s.rotary.kind == RotaryKind::kNone;
}

/// The group of lanes that this thread belongs to.
struct Group {
    int lanes, first;  ///< first: element of the head
    bool holds;        ///< elements of the head at all
    unsigned mask;
    std::int64_t index, count;  ///< among all groups of the launch
};

/// Rows of a part with the heads that go out in one walk: of all destinations in turn, or of one.
struct Walk {
    int to;  ///< of row 0's first head; with `turns` the next row begins one further
    bool turns;
    int heads;
    int pieces;  ///< of a row, about equally long: neighbours in a warp wait for each other
    int length;  ///< heads of a piece
};

__device__ __forceinline__ Walk walk_of(const HeadScatter& s, int turn, int longest) {
    const std::int64_t rows = s.rows * s.batch;
    Walk w{};
    w.turns = s.order == SendOrder::kInterleaved;
    w.to = send_step(s.order, s.rank, s.world, rows, w.turns ? 0 : turn * rows).destination;
    w.heads = w.turns ? sent_heads(s) : s.head_count[w.to];
    w.pieces = (w.heads + longest - 1) / longest;
    w.length = w.pieces == 0 ? 0 : ((w.heads + w.pieces - 1) / w.pieces + 1) / 2 * 2;
    return w;
}

__device__ __forceinline__ int next_of(const HeadScatter& s, int peer) {
    return peer + 1 == s.world ? 0 : peer + 1;
}

/// A piece of one row.
struct Piece {
    int b;
    std::int64_t row;
    int to, slot;  ///< of its first head
    int heads;
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
        to = next_of(s, to);
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

/// This group's pieces of one part, beginning with number `i` of all of them. Returns the number of
/// the first piece beyond, counted from the part's end.
template <class T, Work kWork>
__device__ __forceinline__ std::int64_t send_part(const HeadScatter& s, const Group& g,
                                                  std::int64_t i, int longest) {
    const LaneNorm n = kWork == Work::kCopy ? LaneNorm{} : lane_norm<T>(s, g.first);
    const std::int64_t rows = s.rows * s.batch;
    const int turns = s.order == SendOrder::kInterleaved ? 1 : s.world;
    for (int turn = 0; turn < turns; ++turn) {
        const Walk w = walk_of(s, turn, longest);
        const std::int64_t count = rows * w.pieces;
        if (i >= count) {
            i -= count;
            continue;
        }
        std::int64_t row = quotient(i, w.pieces);
        int piece = static_cast<int>(i - row * w.pieces);
        int to = w.to;
        if (w.turns) to = send_step(s.order, s.rank, s.world, rows, row * s.world).destination;
        int b = static_cast<int>(quotient(row, s.rows));
        row -= b * s.rows;
        const int row_step = static_cast<int>(g.count) / w.pieces;
        const int piece_step = static_cast<int>(g.count) - row_step * w.pieces;
        const int to_step = w.turns ? row_step % s.world : 0;
        for (; i < count; i += g.count) {
            const int slot = piece * w.length;
            const int heads = min(w.length, w.heads - slot);
            send_piece<T, kWork>(s, g, n, {b, row, to, slot, heads});
            piece += piece_step;
            const int carry = piece >= w.pieces ? 1 : 0;
            piece -= carry != 0 ? w.pieces : 0;
            to += to_step + (w.turns ? carry : 0);
            if (to >= s.world) to -= s.world;
            row += row_step + carry;
            if (row >= s.rows) {
                const std::int64_t samples = quotient(row, s.rows);
                b += static_cast<int>(samples);
                row -= samples * s.rows;
            }
        }
        i -= count;
    }
    return i;
}

/// `plain_parts` have no norm and no rotation; pieces of the others have at most `longest` heads.
template <class T, Work kWork>
__global__ void __launch_bounds__(kThreads, kWork == Work::kCopy ? 4 : 2)
    send_vectors(const __grid_constant__ HeadExchange all, int lanes, unsigned plain_parts,
                 int longest) {
    Group g{};
    g.lanes = lanes;
    g.first = static_cast<int>(threadIdx.x) % lanes * kVector;
    g.holds = g.first < all.part[0].head_dim;
    g.mask = (lanes == 32 ? ~0u : (1u << lanes) - 1u) << (threadIdx.x % 32 / lanes * lanes);
    const int per_block = kThreads / lanes;
    g.count = std::int64_t{gridDim.x} * per_block;
    std::int64_t i = std::int64_t{blockIdx.x} * per_block + threadIdx.x / lanes;
    for (int p = 0; p < all.count; ++p) {
        const HeadScatter& s = all.part[p];
        if (kWork == Work::kCopy || (plain_parts >> p & 1) != 0) {
            i = send_part<T, Work::kCopy>(s, g, i, kInFlight<Work::kCopy>);
        } else {
            i = send_part<T, kWork>(s, g, i, longest);
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
std::int64_t piece_count(const HeadExchange& all, int longest) {
    std::int64_t count = 0;
    for (int i = 0; i < all.count; ++i) {
        const HeadScatter& s = all.part[i];
        const int most = is_plain(s) ? kInFlight<Work::kCopy> : longest;
        const auto pieces = [&](int heads) { return (heads + most - 1) / most; };
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
    while (longest > kInFlight<kWork> && piece_count(all, longest) < most * per_block) longest /= 2;
    const auto blocks = static_cast<unsigned>(
        std::clamp<std::int64_t>((piece_count(all, longest) + per_block - 1) / per_block, 1, most));
    send_vectors<T, kWork><<<blocks, kThreads, 0, stream>>>(all, lanes, plain_parts, longest);
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
