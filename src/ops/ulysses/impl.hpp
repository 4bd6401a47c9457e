#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ops/ulysses/memory.hpp"
#include "ops/ulysses/mover.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// Each local rank's part of a mask: one for all samples, or one per sample where the plan has a
/// call for each.
struct MaskParts {
    std::uint64_t id = 0;
    std::vector<std::vector<sparse::BlockMask>> of_rank;
};

struct UlyssesAttention::Impl {
    /// A rank's gathered tensors, in the order that the plan's blocks expect.
    struct Ready {
        View q, k, v;
        const std::int32_t* kv_lengths;
        float scale;
        Destination to;
    };
    struct Pending {
        int buffer;
        std::vector<Destination> to;
    };

    Impl(fabric::Fabric& fabric, const Problem& problem, const Options& options);

    void check_inputs(std::size_t inputs) const;
    void check_sharded(const ShardedInput& input, int rank) const;
    int turn();
    void begin_out(int buffer, const fabric::Streams& streams);
    void bring_q_in_order(Ready& ready, int local, const fabric::Streams& streams);
    void gather_heads(const ShardedInput& input, int local, int buffer,
                      const fabric::Streams& streams);
    /// Attention on every local rank, what cannot be stitched, the signal, and the wait unless
    /// deferred.
    std::vector<Result> run(const std::vector<Ready>& ready, int buffer,
                            const fabric::Streams& streams);
    std::vector<Result> take_results(const fabric::Streams& streams);

    /// Copies where the caller wants them, and views of the rest.
    std::vector<Result> results_of(const Pending& done, const fabric::Streams& streams);

    View out_view(int buffer, int rank) const;
    View sample_view(int buffer, int rank, int sample) const;

    fabric::Fabric& fabric;
    Options options;
    Plan plan;
    std::unique_ptr<Mover> mover;
    std::unique_ptr<Arena> arena;
    int next_buffer = 0;
    bool deferred = false;
    std::optional<Pending> pending;
    std::map<std::shared_ptr<const sparse::BlockMask>, MaskParts> masks;
    const MaskParts* mask = nullptr;  ///< of the next calls

  private:
    AttentionCall call_for(const Ready& ready, int local, void* stream) const;
    void attend_text(const Ready& ready, int local, int buffer, void* stream);
    void attend_blocks(const Ready& ready, int local, int buffer, void* stream);
    void attend_packed(const Ready& ready, int local, int buffer, void* stream);
    void add_mask(AttentionCall& call, int local, int sample) const;
    void name_peers(AttentionCall& call, int sample, int buffer) const;
    void send_text(int local, int buffer, const View& from, void* stream);
    void send_lse(int local, int buffer, std::size_t block, void* stream);
    void send_text_lse(int local, int buffer, const std::byte* from, std::int64_t rows,
                       std::int64_t row, void* stream);
    void add_projection(const Projection& from, int local, int buffer, int which,
                        HeadExchange& image, HeadExchange& text) const;
    void copy_out(const Destination& to, int local, int buffer, void* stream);
    RowScatter rows_to_all(int rank) const;
};

}  // namespace xstage::ulysses
