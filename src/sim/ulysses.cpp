#include "sim/ulysses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/split.hpp"
#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

/// How much of the first step of its inner loop a tile can do without values, whose place in shared
/// memory the last tile's stores read from: the first of the step's two products.
constexpr double kFreeOfStep = 0.5;

/// Runs of rows with one owner, along the axis of the queries.
struct Runs {
    std::vector<std::int64_t> begin;  // and the end of the axis
    std::vector<std::int64_t> rows;   // fewer than to the next run in an owner's last page
    std::vector<int> owner;
};

Runs runs_of(const Ulysses& shape, int gpus, int rank) {
    int first = 0;
    if (shape.layout != Layout::kPeers && shape.first != FirstChunk::kRankZero) {
        first = shape.first == FirstChunk::kOwn ? rank : rank + 1;
    }
    std::vector<std::int64_t> left;
    for (int d = 0; d < gpus; ++d) {
        left.push_back(shape.sequence / gpus + (d < shape.sequence % gpus ? 1 : 0));
    }
    const std::int64_t longest =
        shape.layout == Layout::kPages ? shape.page_rows() : shape.sequence;
    Runs runs;
    std::int64_t row = 0;
    bool any = true;
    for (bool begun = false; any; begun = true) {
        any = false;
        for (int i = 0; i < gpus; ++i) {
            const int d = (first + i) % gpus;
            std::int64_t& rows = left[static_cast<std::size_t>(d)];
            const std::int64_t count = std::min(longest, rows);
            if (count == 0 && begun) continue;
            runs.begin.push_back(row);
            runs.rows.push_back(count);
            runs.owner.push_back(d);
            rows -= count;
            row += shape.layout == Layout::kPages && count > 0 ? longest : count;
            any |= count > 0;
        }
    }
    // Behind the last page nothing follows.
    if (!runs.rows.empty()) row = std::min(row, runs.begin.back() + runs.rows.back());
    runs.begin.push_back(row);
    return runs;
}

/// About a standard normal deviate, the same for the same tile whatever else is simulated.
double deviate(int rank, std::int64_t index) {
    std::uint64_t state =
        static_cast<std::uint64_t>(index) * 1024 + static_cast<std::uint64_t>(rank);
    double sum = 0;
    for (int i = 0; i < 12; ++i) {  // the sum of 12 uniform ones has variance 1
        state += 0x9e3779b97f4a7c15;
        std::uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        sum += static_cast<double>((mixed ^ (mixed >> 31)) >> 11) * 0x1p-53;
    }
    return sum - 6;
}

std::int32_t tiles_up(std::int64_t rows, int tile) {
    return static_cast<std::int32_t>((rows + tile - 1) / tile);
}

class UlyssesProgram : public Program {
  public:
    UlyssesProgram(const Cluster& cluster, const Ulysses& shape, int rank)
        : shape_(shape), rank_(rank), gpus_(cluster.gpus), runs_(runs_of(shape, gpus_, rank)) {
        const bool batched = shape.layout == Layout::kBatched;
        grid_.heads = shape.heads / gpus_;
        grid_.batches = shape.batch;
        if (batched) {
            grid_.tiles = tiles_up((shape.sequence + gpus_ - 1) / gpus_, shape.tile_rows);
            grid_.batches *= gpus_;
        } else {
            grid_.tiles = tiles_up(runs_.begin.back(), shape.tile_rows);
        }
        grid_.tile_begin[1] = grid_.tiles;
        if (shape.layout == Layout::kPeers) {
            grid_.destinations = gpus_;
            grid_.rank = rank;
            grid_.order = shape.order;
            // A tile that holds rows of two owners counts as the first one's.
            for (int d = 0; d < gpus_; ++d) {
                const std::int64_t begin = runs_.begin[static_cast<std::size_t>(d)];
                grid_.tile_begin[d] = std::min(grid_.tiles, tiles_up(begin, shape.tile_rows));
            }
            grid_.tile_begin[gpus_] = grid_.tiles;
        }
        ctas_ = cluster.node.sms;
        at_.resize(static_cast<std::size_t>(ctas_));
        step_.role = Role::kTile;
        step_.compute_ns = shape.tile_ns(cluster);
        const double inner = static_cast<double>(shape.tile_columns) /
                             static_cast<double>(shape.sequence) * step_.compute_ns;
        step_.free_ns = shape.free_ns < 0 ? kFreeOfStep * inner : shape.free_ns;
        for (int d = 0; d < gpus_; ++d) routes_.push_back({{d, 1.0}});
        node_ = cluster.node;
        cost_ = node_.cost_of_pitch(shape.pitch());
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
        step.compute_ns *= 1 + shape_.tile_spread * deviate(rank_, index);
        if (shape_.clusters && grid_.tiles % 2 == 0 && (producer ^ 1) < ctas_)
            step.pair = producer ^ 1;
        step.id = (tile.batch * grid_.heads + tile.head) * grid_.tiles + tile.tile;
        const double row_bytes = static_cast<double>(shape_.head_dim) * shape_.element_bytes;
        if (shape_.layout == Layout::kBatched) {
            const auto chunk = static_cast<std::size_t>(tile.batch % gpus_);
            const std::int64_t rows = runs_.rows[chunk];
            const std::int64_t first = std::int64_t{tile.tile} * shape_.tile_rows;
            const auto count = std::clamp<std::int64_t>(rows - first, 0, shape_.tile_rows);
            store(step, runs_.owner[chunk], static_cast<double>(count) * row_bytes);
        } else {
            const std::int64_t first = std::int64_t{tile.tile} * shape_.tile_rows;
            const std::int64_t last = first + shape_.tile_rows;
            const auto after = std::upper_bound(runs_.begin.begin(), runs_.begin.end(), first);
            for (auto i = static_cast<std::size_t>(after - runs_.begin.begin()) - 1;
                 i < runs_.owner.size() && runs_.begin[i] < last; ++i) {
                const auto count = std::min(last, runs_.begin[i] + runs_.rows[i]) -
                                   std::max(first, runs_.begin[i]);
                if (count > 0) store(step, runs_.owner[i], static_cast<double>(count) * row_bytes);
            }
        }
        return true;
    }

  private:
    void store(Step& step, int owner, double bytes) const {
        if (shape_.all_remote && owner == rank_) owner = (rank_ + 1) % gpus_;
        if (owner == rank_ || shape_.all_local) {
            step.local_ns += node_.local_ns(bytes);
            return;
        }
        for (int i = 0; i < step.parts; ++i) {
            // Runs shorter than a tile: what a third owner gets goes with the second's.
            Part& part = step.part[i];
            if (part.route != owner && i == 0) continue;
            part.bytes += bytes;
            part.issue_ns = node_.issue_ns(part.bytes);
            return;
        }
        const bool near = near_[static_cast<std::size_t>(owner)];
        step.part[step.parts++] = {bytes, node_.issue_ns(bytes), owner,
                                   near ? Channel::kLink : Channel::kNetwork, cost_};
    }

    Ulysses shape_;
    int rank_, gpus_, ctas_ = 0;
    Runs runs_;
    plan::AttentionGrid grid_;
    Node node_;
    Step step_;
    double cost_ = 1;
    std::vector<Route> routes_;
    std::vector<bool> near_;
    std::vector<std::int64_t> at_;
};

}  // namespace

std::int64_t Ulysses::page_rows() const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(page_bytes / pitch()));
}

double Ulysses::pitch() const {
    if (row_pitch > 0) return row_pitch;
    const double packed = static_cast<double>(heads) * head_dim * element_bytes;
    const bool stitched_axis = layout == Layout::kPadded || layout == Layout::kPages;
    return stitched_axis ? std::exp2(std::ceil(std::log2(packed))) : packed;
}

std::int64_t Ulysses::tiles(const Cluster& cluster) const {
    const std::int64_t per_head =
        layout == Layout::kBatched
            ? std::int64_t{tiles_up((sequence + cluster.gpus - 1) / cluster.gpus, tile_rows)} *
                  cluster.gpus
            : tiles_up(runs_of(*this, cluster.gpus, 0).begin.back(), tile_rows);
    return per_head * (heads / cluster.gpus) * batch;
}

double Ulysses::waves(const Cluster& cluster) const {
    const int sms = cluster.node.sms;
    return static_cast<double>((tiles(cluster) + sms - 1) / sms);
}

double Ulysses::tile_ns(const Cluster& cluster) const {
    const int sms = cluster.node.sms;
    if (attention_ns > 0) return attention_ns / waves(cluster);
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
    Cluster part = cluster;
    Ulysses inner = shape;
    if (shape.copying_sms > 0) {
        const int left = cluster.node.sms - shape.copying_sms;
        if (left < 1) {
            fail(fmt::format("/ulysses/copying_sms: expected fewer than the {} SMs, found {}",
                             cluster.node.sms, shape.copying_sms));
        }
        part.node = computing_part(cluster.node, left);
        // A tile takes as long as before; there are fewer SMs for them.
        inner.attention_ns = shape.tile_ns(cluster) * shape.waves(part);
    }
    const ProgramFactory programs = [part, inner](int rank) {
        return std::make_unique<UlyssesProgram>(part, inner, rank);
    };
    return shape.copying_sms > 0 ? split_programs(cluster, shape.copying_sms, programs) : programs;
}

}  // namespace xstage::sim
