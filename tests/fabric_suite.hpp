#pragma once

// What a fabric must do, on any backend: run by tests/host/fabric over threads and processes, and
// by tests/gpu/fabric over virtual ranks and processes on GPUs. A body runs in every process of the
// group and throws what it finds wrong, since a child process has no other way to say it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/fabric.hpp"

namespace xstage::fabric::suite {

#define SUITE_REQUIRE(condition)                                                                 \
    do {                                                                                         \
        if (!(condition))                                                                        \
            throw std::runtime_error(__FILE__ ":" + std::to_string(__LINE__) + ": " #condition); \
    } while (false)

inline std::uint32_t pattern(std::uint64_t seed, std::uint64_t row, std::uint64_t word) {
    return static_cast<std::uint32_t>(protocol::mix(protocol::mix(seed, row), word));
}

/// How the tests touch memory: plain accesses on `host`, kernels on a GPU.
class Ops {
  public:
    virtual ~Ops() = default;
    virtual Streams streams() const { return {}; }
    /// Stores pattern(seed, first_row + r, w) to word w of row r, as that rank.
    virtual void store(int rank, void* to, std::size_t stride, std::int64_t rows, std::size_t words,
                       std::uint64_t seed, std::int64_t first_row) = 0;
    /// Counts the words that differ from the pattern.
    virtual std::uint64_t differing(int rank, const void* from, std::size_t stride,
                                    std::int64_t rows, std::size_t words, std::uint64_t seed,
                                    std::int64_t first_row) = 0;
    /// Counts the words that are not all ones.
    virtual std::uint64_t not_poison(int rank, const void* from, std::size_t words) = 0;
    /// Holds a rank up for a moment, in its stream where there is one.
    virtual void delay(int rank, std::uint32_t microseconds) = 0;
};

class HostOps final : public Ops {
  public:
    void store(int, void* to, std::size_t stride, std::int64_t rows, std::size_t words,
               std::uint64_t seed, std::int64_t first_row) override {
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::size_t w = 0; w < words; ++w) {
                const std::uint32_t value = pattern(seed, first_row + r, w);
                std::memcpy(static_cast<std::byte*>(to) + r * stride + w * 4, &value, 4);
            }
    }
    std::uint64_t differing(int, const void* from, std::size_t stride, std::int64_t rows,
                            std::size_t words, std::uint64_t seed,
                            std::int64_t first_row) override {
        std::uint64_t count = 0;
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::size_t w = 0; w < words; ++w) {
                std::uint32_t value;
                std::memcpy(&value, static_cast<const std::byte*>(from) + r * stride + w * 4, 4);
                count += value != pattern(seed, first_row + r, w);
            }
        return count;
    }
    std::uint64_t not_poison(int, const void* from, std::size_t words) override {
        std::uint64_t count = 0;
        for (std::size_t w = 0; w < words; ++w) {
            std::uint32_t value;
            std::memcpy(&value, static_cast<const std::byte*>(from) + w * 4, 4);
            count += value != 0xffffffffu;
        }
        return count;
    }
    void delay(int, std::uint32_t microseconds) override {
        std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    }
};

/// A rank's row in any rank's buffer: stored there, or put from `outgoing` where that is on another
/// node.
inline void place(Ops& ops, SymmetricBuffer& buffer, SymmetricBuffer& outgoing, int from, int to,
                  std::size_t offset, std::size_t words, std::uint64_t seed) {
    const std::size_t bytes = words * 4;
    if (void* const there = buffer.at(to)) {
        ops.store(from, static_cast<std::byte*>(there) + offset, bytes, 1, words, seed, 0);
        return;
    }
    const std::size_t slot = bytes * static_cast<std::size_t>(to);
    ops.store(from, static_cast<std::byte*>(outgoing.at(from)) + slot, bytes, 1, words, seed, 0);
    buffer.put(from, to, offset, outgoing, slot, bytes, ops.streams());
}

/// Every rank stores a part of every other's buffer; growing keeps what is there.
inline void symmetric_buffer(Fabric& fabric, Ops& ops) {
    const int world = fabric.world();
    const std::size_t part = 4096;
    const std::size_t words = part / 4;
    SymmetricBuffer buffer(fabric, part * world, DType::kF32, 4 * fabric.page_bytes());
    SymmetricBuffer outgoing(fabric, part * world);
    for (int r : fabric.local_ranks())
        for (int p = 0; p < world; ++p)
            place(ops, buffer, outgoing, r, p, part * r, words, r * 100 + p);
    fabric.barrier(ops.streams());
    auto verify = [&] {
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world; ++p)
                SUITE_REQUIRE(ops.differing(r, static_cast<std::byte*>(buffer.at(r)) + part * p,
                                            part, 1, words, p * 100 + r, 0) == 0);
    };
    verify();
    fabric.barrier(ops.streams());
    fabric.synchronize(ops.streams());

    void* const before = buffer.at(fabric.local_ranks().front());
    buffer.grow(3 * fabric.page_bytes());
    SUITE_REQUIRE(buffer.at(fabric.local_ranks().front()) == before);
    verify();
    buffer.grow(9 * fabric.page_bytes());
    SUITE_REQUIRE(buffer.bytes() == 9 * fabric.page_bytes());
    verify();
    // The grown part is shared too.
    const std::size_t tail = 9 * fabric.page_bytes() - part * world;
    for (int r : fabric.local_ranks())
        for (int p = 0; p < world; ++p)
            place(ops, buffer, outgoing, r, p, tail + part * r, words, r * 7 + p);
    fabric.barrier(ops.streams());
    for (int r : fabric.local_ranks())
        for (int p = 0; p < world; ++p)
            SUITE_REQUIRE(ops.differing(r, static_cast<std::byte*>(buffer.at(r)) + tail + part * p,
                                        part, 1, words, p * 7 + r, 0) == 0);
    fabric.barrier(ops.streams());
    fabric.synchronize(ops.streams());
}

/// Runs of rows that are side by side in the range, with their owner.
inline void for_each_run(const StitchedLayout& layout,
                         const std::function<void(int owner, std::int64_t first, std::int64_t rows,
                                                  std::size_t offset)>& f) {
    for (const Segment& s : layout.segments) {
        const auto first =
            static_cast<std::int64_t>((s.owner_offset + layout.row_stride - 1) / layout.row_stride);
        const auto end = std::min<std::int64_t>(
            layout.spec.rows[s.owner],
            static_cast<std::int64_t>((s.owner_offset + s.bytes) / layout.row_stride));
        if (end > first) f(s.owner, first, end - first, layout.offset_of(s.owner, first));
    }
}

/// The rank's part of a call: its columns of every row, through the range.
inline void store_columns(Fabric& fabric, Ops& ops, StitchedTensor& tensor, int buffer,
                          std::uint64_t call) {
    const StitchedLayout& layout = tensor.layout();
    const std::size_t part = layout.spec.row_bytes / fabric.world();
    for (int r : fabric.local_ranks())
        for_each_run(
            layout, [&](int owner, std::int64_t first, std::int64_t rows, std::size_t offset) {
                ops.store(r, static_cast<std::byte*>(tensor.range(buffer)) + offset + part * r,
                          layout.row_stride, rows, part / 4, call * 1000 + r * 16 + owner, first);
            });
}

inline void verify_columns(Fabric& fabric, Ops& ops, StitchedTensor& tensor, int buffer,
                           std::uint64_t call) {
    const StitchedLayout& layout = tensor.layout();
    const std::size_t part = layout.spec.row_bytes / fabric.world();
    for (int r : fabric.local_ranks())
        for (int p = 0; p < fabric.world() && layout.spec.rows[r] > 0; ++p)
            SUITE_REQUIRE(
                ops.differing(r, static_cast<std::byte*>(tensor.receive(buffer, r)) + part * p,
                              layout.row_stride, layout.spec.rows[r], part / 4,
                              call * 1000 + p * 16 + r, 0) == 0);
}

inline void one_call(Fabric& fabric, Ops& ops, StitchedTensor& tensor, int buffer,
                     std::uint64_t call) {
    tensor.begin(buffer, ops.streams());
    store_columns(fabric, ops, tensor, buffer, call);
    if (call % 2 == 0) {
        tensor.exchange(buffer, ops.streams());
    } else {
        tensor.publish(buffer, ops.streams());
        tensor.acquire(buffer, ops.streams());
    }
    verify_columns(fabric, ops, tensor, buffer, call);
}

/// Uneven rows, both layouts and orders, buffers in no regular turn, delays now and then.
inline void stitched_tensor(Fabric& fabric, Ops& ops) {
    const int world = fabric.world();
    std::mt19937 random(fabric.local_ranks().front() + 1);
    for (int variant = 0; variant < 4; ++variant) {
        StitchedOptions options;
        options.kind = variant == 0 ? LayoutKind::kBatched : LayoutKind::kPadded;
        options.order = variant == 2 ? ChunkOrder::kPages : ChunkOrder::kWhole;
        options.row_bytes = static_cast<std::size_t>(world) * 48 * 1024 / 2;
        options.dtype = DType::kF32;
        for (int r = 0; r < world; ++r)
            options.rows.push_back(variant == 0             ? 70
                                   : variant == 3 && r == 0 ? 0
                                                            : 30 + 61 * (r % 3));
        if (variant == 0) options.rows.back() = 9;
        if (variant == 3) options.rows.back() += 1;
        if (variant != 0)
            for (int r = 0; r < world; ++r) options.rank_order.push_back(world - 1 - r);
        options.buffers = variant == 3 ? 1 : 2;
        StitchedTensor tensor(fabric, options);
        std::uint64_t call = variant * 100;
        for (int buffer : {0, 1, 0, 0, 1, 1, 0}) {
            if (random() % 4 == 0) ops.delay(fabric.local_ranks().front(), random() % 2000);
            one_call(fabric, ops, tensor, buffer % options.buffers, ++call);
        }
        fabric.barrier(ops.streams());
        fabric.synchronize(ops.streams());
    }
}

/// put() between every pair of ranks, whether or not they share a node.
inline void puts(Fabric& fabric, Ops& ops) {
    const int world = fabric.world();
    const std::size_t part = std::size_t{3} << 18;  // several blocks of a kernel's worth
    SymmetricBuffer inbox(fabric, part * world), outbox(fabric, part * world);
    for (int round = 0; round < 2; ++round) {
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world; ++p) {
                ops.store(r, static_cast<std::byte*>(outbox.at(r)) + part * p, part, 1, part / 4,
                          round * 1000 + r * 16 + p, 0);
                inbox.put(r, p, part * r, outbox, part * p, part, ops.streams());
            }
        fabric.barrier(ops.streams());
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world; ++p)
                SUITE_REQUIRE(ops.differing(r, static_cast<std::byte*>(inbox.at(r)) + part * p,
                                            part, 1, part / 4, round * 1000 + p * 16 + r, 0) == 0);
        fabric.barrier(ops.streams());
    }
    fabric.synchronize(ops.streams());
}

/// Calls that nobody finished must not reach into the next tensor on the same channels.
inline void abandoned_calls(Fabric& fabric, Ops& ops) {
    StitchedOptions options;
    options.rows.assign(fabric.world(), 9);
    options.row_bytes = static_cast<std::size_t>(fabric.world()) * 512;
    {
        StitchedTensor tensor(fabric, options);
        one_call(fabric, ops, tensor, 0, 1);
        tensor.begin(1, ops.streams());
        store_columns(fabric, ops, tensor, 1, 2);
        tensor.publish(1, ops.streams());
    }
    StitchedTensor tensor(fabric, options);
    for (int call = 0; call < 5; ++call) one_call(fabric, ops, tensor, 1 - call % 2, 10 + call);
    fabric.barrier(ops.streams());
    fabric.synchronize(ops.streams());
}

/// The two views of local memory are the same memory, row by row.
inline void local_alias(Fabric& fabric, Ops& ops) {
    LayoutSpec spec;
    spec.order = ChunkOrder::kPages;
    for (int r = 0; r < fabric.world(); ++r) spec.rows.push_back(40 + 90 * (r % 2));
    spec.row_bytes = 40000;
    spec.page_bytes = fabric.page_bytes();
    const StitchedLayout layout = make_layout(spec);
    LocalAlias alias(fabric, layout, 16384);
    for (int r : fabric.local_ranks()) {
        for (int chunk = 0; chunk < fabric.world(); ++chunk)
            ops.store(r, static_cast<std::byte*>(alias.natural(r)) + alias.natural_offset(chunk, 0),
                      layout.row_stride, layout.spec.rows[chunk], 4096, r * 50 + chunk, 0);
        for_each_run(layout, [&](int owner, std::int64_t first, std::int64_t rows,
                                 std::size_t offset) {
            SUITE_REQUIRE(ops.differing(r, static_cast<std::byte*>(alias.stitched(r)) + offset,
                                        layout.row_stride, rows, 4096, r * 50 + owner, first) == 0);
        });
    }
}

/// Barriers with random delays: what a rank stored before one is there after it.
inline void barriers(Fabric& fabric, Ops& ops, int count) {
    const int world = fabric.world();
    SymmetricBuffer words(fabric, 128 * kMaxRanks), outgoing(fabric, 4 * kMaxRanks);
    std::mt19937 random(fabric.local_ranks().front() * 77 + 5);
    for (int i = 0; i < count; ++i) {
        if (random() % 16 == 0) ops.delay(fabric.local_ranks().front(), random() % 100);
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world; ++p)
                place(ops, words, outgoing, r, p, 128 * r, 1, i * 64 + r);
        fabric.barrier(ops.streams());
        // Looking costs a copy on a GPU: every so often is enough there, the barriers all run.
        const bool look = count <= 1000 || i % 64 == 0 || i + 1 == count;
        for (int r : fabric.local_ranks())
            for (int p = 0; p < world && look; ++p)
                SUITE_REQUIRE(ops.differing(r, static_cast<std::byte*>(words.at(r)) + 128 * p, 128,
                                            1, 1, i * 64 + p, 0) == 0);
        fabric.barrier(ops.streams());
    }
    fabric.synchronize(ops.streams());
}

}  // namespace xstage::fabric::suite
