#include "sim/ulysses.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

struct Chunks {
    std::vector<std::int64_t> begin;  // of the chunk at each position, in rows; then the end
    std::vector<int> owner;           // of the chunk at each position
};

Chunks chunks_of(const Ulysses& shape, int gpus, int rank) {
    Chunks chunks;
    int first = 0;
    if (shape.layout != Layout::kPeers && shape.first != FirstChunk::kRankZero) {
        first = shape.first == FirstChunk::kOwn ? rank : rank + 1;
    }
    std::int64_t row = 0;
    for (int i = 0; i < gpus; ++i) {
        const int d = (first + i) % gpus;
        chunks.begin.push_back(row);
        chunks.owner.push_back(d);
        row += shape.sequence / gpus + (d < shape.sequence % gpus ? 1 : 0);
    }
    chunks.begin.push_back(row);
    return chunks;
}

std::int32_t tiles_up(std::int64_t rows, int tile) {
    return static_cast<std::int32_t>((rows + tile - 1) / tile);
}

class UlyssesProgram : public Program {
  public:
    UlyssesProgram(const Cluster& cluster, const Ulysses& shape, int rank)
        : shape_(shape), rank_(rank), gpus_(cluster.gpus), chunks_(chunks_of(shape, gpus_, rank)) {
        const bool batched = shape.layout == Layout::kBatched;
        grid_.heads = shape.heads / gpus_;
        grid_.batches = shape.batch;
        if (batched) {
            grid_.tiles = tiles_up((shape.sequence + gpus_ - 1) / gpus_, shape.tile_rows);
            grid_.batches *= gpus_;
        } else {
            grid_.tiles = tiles_up(shape.sequence, shape.tile_rows);
            grid_.destinations = gpus_;
            grid_.rank = rank;
            if (shape.layout == Layout::kPeers) grid_.order = shape.order;
            // A tile that holds rows of two owners counts as the first one's.
            for (int d = 0; d < gpus_; ++d) {
                grid_.tile_begin[d] =
                    std::min(grid_.tiles,
                             tiles_up(chunks_.begin[static_cast<std::size_t>(d)], shape.tile_rows));
            }
            grid_.tile_begin[gpus_] = grid_.tiles;
        }
        if (batched) grid_.tile_begin[1] = grid_.tiles;
        ctas_ = cluster.node.sms;
        at_.resize(static_cast<std::size_t>(ctas_));
        step_.role = Role::kTile;
        step_.compute_ns = shape.tile_ns(cluster);
        const double inner = static_cast<double>(shape.tile_columns) /
                             static_cast<double>(shape.sequence) * step_.compute_ns;
        step_.free_ns = shape.free_ns < 0 ? inner : shape.free_ns;
        for (int d = 0; d < gpus_; ++d) routes_.push_back({{d, 1.0}});
        node_ = cluster.node;
        near_.resize(static_cast<std::size_t>(gpus_));
        for (int d = 0; d < gpus_; ++d) {
            near_[static_cast<std::size_t>(d)] = cluster.same_domain(rank, d);
        }
    }

    int producers() const override { return ctas_; }
    const std::vector<Route>& routes() const override { return routes_; }

    // The kernel's static persistent schedule: CTA c runs tasks c, c + CTAs, ...
    bool claim(int producer, Step& step) override {
        const std::int64_t index =
            producer + std::int64_t{ctas_} * at_[static_cast<std::size_t>(producer)];
        if (index >= grid_.size()) return false;
        ++at_[static_cast<std::size_t>(producer)];
        const plan::AttentionTile tile = plan::tile_at(grid_, index);
        step = step_;
        if (shape_.clusters && grid_.tiles % 2 == 0 && (producer ^ 1) < ctas_)
            step.pair = producer ^ 1;
        step.id = (tile.batch * grid_.heads + tile.head) * grid_.tiles + tile.tile;
        const double row_bytes = static_cast<double>(shape_.head_dim) * shape_.element_bytes;
        if (shape_.layout == Layout::kBatched) {
            const auto chunk = static_cast<std::size_t>(tile.batch % gpus_);
            const std::int64_t rows = chunks_.begin[chunk + 1] - chunks_.begin[chunk];
            const std::int64_t first = std::int64_t{tile.tile} * shape_.tile_rows;
            const auto count = std::clamp<std::int64_t>(rows - first, 0, shape_.tile_rows);
            store(step, chunks_.owner[chunk], static_cast<double>(count) * row_bytes);
        } else {
            const std::int64_t first = std::int64_t{tile.tile} * shape_.tile_rows;
            const std::int64_t last = std::min(first + shape_.tile_rows, shape_.sequence);
            for (std::size_t i = 0; i < chunks_.owner.size(); ++i) {
                const auto count =
                    std::min(last, chunks_.begin[i + 1]) - std::max(first, chunks_.begin[i]);
                if (count > 0)
                    store(step, chunks_.owner[i], static_cast<double>(count) * row_bytes);
            }
        }
        return true;
    }

  private:
    void store(Step& step, int owner, double bytes) const {
        if (shape_.all_remote && owner == rank_) owner = (rank_ + 1) % gpus_;
        if (owner == rank_ || shape_.all_local) {
            step.local_ns += node_.local_ns(bytes);
        } else if (step.parts < 2) {
            step.part[step.parts++] = {
                bytes, node_.issue_ns(bytes), owner,
                near_[static_cast<std::size_t>(owner)] ? Channel::kLink : Channel::kNetwork};
        } else {  // chunks shorter than a tile: what the third owner gets goes with the second's
            step.part[1].bytes += bytes;
            step.part[1].issue_ns = node_.issue_ns(step.part[1].bytes);
        }
    }

    Ulysses shape_;
    int rank_, gpus_, ctas_ = 0;
    Chunks chunks_;
    plan::AttentionGrid grid_;
    Node node_;
    Step step_;
    std::vector<Route> routes_;
    std::vector<bool> near_;
    std::vector<std::int64_t> at_;
};

}  // namespace

std::int64_t Ulysses::tiles(const Cluster& cluster) const {
    const std::int64_t per_head =
        layout == Layout::kBatched
            ? std::int64_t{tiles_up((sequence + cluster.gpus - 1) / cluster.gpus, tile_rows)} *
                  cluster.gpus
            : tiles_up(sequence, tile_rows);
    return per_head * (heads / cluster.gpus) * batch;
}

double Ulysses::tile_ns(const Cluster& cluster) const {
    const int sms = cluster.node.sms;
    if (attention_ns > 0) {
        const std::int64_t waves = (tiles(cluster) + sms - 1) / sms;
        return attention_ns / static_cast<double>(waves);
    }
    const double flop = 4.0 * tile_rows * static_cast<double>(sequence) * head_dim;
    return flop / (cluster.node.bf16_tflops * 1e3 / sms);
}

ProgramFactory ulysses_programs(const Cluster& cluster, const Ulysses& shape) {
    const auto fail = [](const std::string& message) {
        throw Error(ErrorKind::kBadInput, message);
    };
    if (shape.heads % cluster.gpus != 0) {
        fail(fmt::format("/ulysses/heads: expected a multiple of the {} GPUs, found {}",
                         cluster.gpus, shape.heads));
    }
    if (cluster.gpus > plan::kMaxDestinations) {
        fail(fmt::format("/gpus: expected at most {} for ulysses, found {}", plan::kMaxDestinations,
                         cluster.gpus));
    }
    if (shape.attention_ns <= 0 && cluster.node.bf16_tflops <= 0) {
        fail("/ulysses/attention_ns: expected a number > 0, as the node gives no bf16 rate");
    }
    return [cluster, shape](int rank) {
        return std::make_unique<UlyssesProgram>(cluster, shape, rank);
    };
}

}  // namespace xstage::sim
