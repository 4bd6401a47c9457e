#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/ulysses/bench_gpu.hpp"
#include "ops/ulysses/bench_rank.hpp"
#include "ops/ulysses/mover.hpp"
#include "ops/ulysses/nccl.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// One process's part of the benchmark: builds a shape's variants, times them in turn, compares.
class RankBench {
  public:
    RankBench(const BenchOptions& options, int rank, const std::string& name);
    ~RankBench();

    ShapeTimes shape(const BenchShape& s);

  private:
    struct Variant {
        std::string name;
        std::function<void()> send;     ///< until the sender may go on
        std::function<void()> receive;  ///< the rest; may be empty
        std::function<View(int)> out;   ///< a local rank's rows afterwards; empty: nothing compared
        std::unique_ptr<Graph> graphs[2];
        Times times;
    };

    void add(const std::string& name, std::function<void()> send,
             std::function<void()> receive = {}, std::function<View(int)> out = {});

    // bench_rank.cpp: attention and its second all-to-all
    void add_stitched(Layout layout, const Problem& problem, bool own_q, ShapeTimes& result);
    void add_signals(const Problem& problem);
    void once(Variant& v, bool timed);
    void time_all(const BenchShape& s);
    void compare(const Problem& problem, ShapeTimes& result);
    std::vector<std::uint16_t> rows_of(const Variant& v, int local, std::int64_t rows,
                                       std::int64_t width) const;

    // bench_exchange.cpp: the first all-to-all
    void add_exchanges(const Problem& problem, ShapeTimes& result);
    std::vector<ShardedInput> sharded(const Problem& problem, bool flux);
    void add_copies(const Problem& problem);

    // bench_serial.cpp: what there is without any of it
    AttentionCall whole_call(std::size_t local, const Problem& problem);
    void add_alone(const Problem& problem);
    void add_nccl(const Problem& problem);

    Options options_for(Layout layout, bool attend) const;
    Buffer& buffer(std::size_t bytes, unsigned seed);
    UlyssesAttention& attention(const Problem& problem, const Options& options);

    const BenchOptions& options_;
    int rank_;
    std::unique_ptr<fabric::Fabric> group_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t event_[3] = {};
    void* flush_ = nullptr;
    Plug plug_;
    std::unique_ptr<Mover> mover_;
    std::unique_ptr<Nccl> nccl_;
    std::string nccl_missing_ = "one rank per process is needed";
    std::vector<Variant> variants_;
    std::vector<std::unique_ptr<UlyssesAttention>> attentions_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<GatheredInput> gathered_;
    Heads heads_;
};

}  // namespace xstage::ulysses
