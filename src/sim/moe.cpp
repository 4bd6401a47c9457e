#include "sim/moe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/split.hpp"
#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

class MoeProgram : public Program {
  public:
    MoeProgram(const Cluster& cluster, const Moe& moe, int rank)
        : moe_(moe), node_(cluster.node), rank_(rank), rows_(moe_rows(moe, cluster.gpus, rank)) {
        grid_.experts = static_cast<std::int32_t>(rows_.begin.size()) - 1;
        grid_.n1 = moe.columns1();
        grid_.n2 = moe.columns2();
        grid_.row_begin = rows_.begin.data();
        turns_ = plan::turns_of(grid_, moe.order);
        left_.assign(static_cast<std::size_t>(grid_.rows()), grid_.n1);
        arrived_.assign(left_.size(), moe.dispatch == Dispatch::kHidden);
        make_routes(cluster);
        for (int e = 0; e < grid_.experts; ++e) {
            const int rows = rows_.begin[static_cast<std::size_t>(e) + 1] -
                             rows_.begin[static_cast<std::size_t>(e)];
            times_.push_back(moe_tile_times(node_, moe, rows));
        }
    }

    int producers() const override {
        return node_.sms + (moe_.dispatch == Dispatch::kPull ? 1 : 0);
    }
    int first_helper() const override { return node_.sms; }
    const std::vector<Route>& routes() const override { return routes_; }
    int gates() const override { return static_cast<int>(2 * left_.size()); }

    bool open(int gate) const override {
        const auto rows = static_cast<int>(left_.size());
        return gate < rows ? left_[static_cast<std::size_t>(gate)] == 0
                           : arrived_[static_cast<std::size_t>(gate - rows)];
    }

    bool claim(int producer, Step& step) override {
        if (producer >= node_.sms) return claim_dispatch(step);
        if (next_ >= grid_.size()) return false;
        const plan::MoeTile tile = plan::moe_tile_at(grid_, moe_.order, turns_, next_++);
        const auto row = static_cast<std::size_t>(tile.row);
        const auto expert = static_cast<std::size_t>(rows_.expert[row]);
        step = Step{};
        step.role = tile.second ? Role::kLinear2 : Role::kLinear1;
        step.id = tile.row * (tile.second ? grid_.n2 : grid_.n1) + tile.n;
        step.gate = tile.second ? tile.row : tile.row + static_cast<int>(left_.size());
        step.compute_ns = tile.second ? times_[expert].linear2_ns : times_[expert].linear1_ns;
        if (moe_.epilogue_apart) step.free_ns = step.compute_ns;
        const int tokens = rows_.tokens[row];
        if (tile.second) {
            store(step, expert, 2.0 * tokens * columns(tile.n, moe_.hidden, moe_.tile_columns2));
        } else {
            const int wide = columns(tile.n, 2 * moe_.intermediate, moe_.tile_columns1);
            step.local_ns = node_.local_ns(tokens * wide / 2.0 * moe_.activation_bytes);
        }
        return true;
    }

    int accepted(const Step& step) override {
        if (step.role == Role::kDispatch && step.parts == 0) return drained(step);
        if (step.role != Role::kLinear1) return -1;
        const int row = step.id / grid_.n1;
        return --left_[static_cast<std::size_t>(row)] == 0 ? row : -1;
    }

    int drained(const Step& step) override {
        if (step.role != Role::kDispatch) return -1;
        arrived_[static_cast<std::size_t>(step.id)] = true;
        return step.id + static_cast<int>(left_.size());
    }

  private:
    static int columns(int n, int all, int tile) { return std::min(tile, all - n * tile); }

    // The rows of an expert hold tokens of all GPUs, dealt out evenly: one route per expert and
    // channel, and one for the dispatch.
    void make_routes(const Cluster& cluster) {
        const int local = moe_.experts / cluster.gpus;
        for (int e = 0; e < grid_.experts; ++e) {
            const int expert = rank_ * local + e;
            const double total = moe_.routing->total(expert);
            Shares shares;
            Route link, network;
            for (int s = 0; s < cluster.gpus && total > 0; ++s) {
                const double share = moe_.routing->at(expert, s) / total;
                if (share <= 0) continue;
                if (s == rank_) {
                    shares.own = share;
                } else if (cluster.same_domain(rank_, s)) {
                    shares.link += share;
                    link.push_back({s, share});
                } else {
                    shares.network += share;
                    network.push_back({s, share});
                }
            }
            for (auto& [gpu, share] : link) share /= shares.link;
            for (auto& [gpu, share] : network) share /= shares.network;
            shares_.push_back(shares);
            routes_.push_back(std::move(link));
            routes_.push_back(std::move(network));
        }
        // The tokens of this GPU that other GPUs pull: they leave as fast as it gets its own, which
        // is exact where the routing is balanced.
        Route peers;
        for (int d = 0; d < cluster.gpus; ++d) {
            if (d != rank_ && cluster.same_domain(rank_, d)) peers.push_back({d, 1.0});
        }
        for (auto& [gpu, share] : peers) share /= static_cast<double>(peers.size());
        routes_.push_back(std::move(peers));
        double rows = 0;
        for (int e = 0; e < moe_.experts; ++e) {
            if (e / local != rank_) rows += moe_.routing->at(e, rank_);
        }
        const double bytes = moe_.hidden * (moe_.activation_bytes + 1.0 / 32);
        double mine = 0;
        for (const std::int32_t tokens : rows_.tokens) mine += tokens;
        dispatch_per_token_ = mine > 0 ? rows * bytes / mine : 0;
    }

    void store(Step& step, std::size_t expert, double bytes) const {
        const double issue = node_.issue_ns(bytes);
        const Shares& shares = shares_[expert];
        step.local_ns = node_.local_ns(bytes) * shares.own;
        const int route = 2 * static_cast<int>(expert);
        if (shares.link > 0) {
            step.part[step.parts++] = {bytes * shares.link, issue * shares.link, route,
                                       Channel::kLink};
        }
        if (shares.network > 0) {
            step.part[step.parts++] = {bytes * shares.network, issue * shares.network, route + 1,
                                       Channel::kNetwork};
        }
    }

    bool claim_dispatch(Step& step) {
        if (next_row_ >= left_.size()) return false;
        const double bytes = dispatch_per_token_ * rows_.tokens[next_row_];
        step = Step{};
        step.role = Role::kDispatch;
        step.id = static_cast<int>(next_row_++);
        if (bytes > 0 && !routes_.back().empty()) {
            step.parts = 1;
            step.part[0] = {bytes, 0, static_cast<int>(routes_.size()) - 1, Channel::kLink};
        }
        return true;
    }

    struct Shares {
        double own = 0, link = 0, network = 0;
    };

    Moe moe_;
    Node node_;
    int rank_;
    MoeRows rows_;
    plan::MoeGrid grid_;
    plan::MoeTurns turns_;
    std::vector<TileTimes> times_;
    std::vector<Shares> shares_;
    std::vector<Route> routes_;
    std::vector<std::int32_t> left_;  // Linear-1 tiles of each row that are not stored yet
    std::vector<bool> arrived_;
    std::int64_t next_ = 0;
    std::size_t next_row_ = 0;
    double dispatch_per_token_ = 0;
};

}  // namespace

MoeRows moe_rows(const Moe& moe, int gpus, int rank) {
    MoeRows rows;
    const int local = moe.experts / gpus;
    for (int e = 0; e < local; ++e) {
        rows.begin.push_back(static_cast<std::int32_t>(rows.tokens.size()));
        for (int left = moe.routing->total(rank * local + e); left > 0; left -= moe.tile_rows) {
            rows.tokens.push_back(std::min(left, moe.tile_rows));
            rows.expert.push_back(e);
        }
    }
    rows.begin.push_back(static_cast<std::int32_t>(rows.tokens.size()));
    return rows;
}

TileTimes moe_tile_times(const Node& node, const Moe& moe, int rows) {
    const double rate =
        (moe.activation_bytes > 1 ? node.bf16_tflops : node.fp8_tflops) * 1e3 / node.sms;
    const double memory = node.memory_rate / node.sms;
    const auto time = [&](double given, int columns, int depth) {
        if (given > 0) return given;
        const double flop = 2.0 * moe.tile_rows * columns * depth;
        const double weights = memory > 0 && rows > 0 ? columns * static_cast<double>(depth) *
                                                            moe.weight_bytes / memory / rows
                                                      : 0;
        return std::max(flop / rate, weights);
    };
    return {time(moe.tile1_ns, moe.tile_columns1, moe.hidden),
            time(moe.tile2_ns, moe.tile_columns2, moe.intermediate)};
}

ProgramFactory moe_programs(const Cluster& cluster, const Moe& moe) {
    const auto fail = [](const std::string& message) {
        throw Error(ErrorKind::kBadInput, message);
    };
    if (moe.experts % cluster.gpus != 0) {
        fail(fmt::format("/moe/experts: expected a multiple of the {} GPUs, found {}", cluster.gpus,
                         moe.experts));
    }
    if (!moe.routing || moe.routing->experts != moe.experts || moe.routing->gpus != cluster.gpus) {
        fail("/moe/routing: expected the routing of these experts and GPUs");
    }
    const double rate =
        moe.activation_bytes > 1 ? cluster.node.bf16_tflops : cluster.node.fp8_tflops;
    if ((moe.tile1_ns <= 0 || moe.tile2_ns <= 0) && rate <= 0) {
        fail("/moe/tile1_ns: expected a number > 0, as the node gives no arithmetic rate");
    }
    Cluster part = cluster;
    if (moe.copying_sms > 0) {
        if (moe.copying_sms >= cluster.node.sms) {
            fail(fmt::format("/moe/copying_sms: expected fewer than the {} SMs, found {}",
                             cluster.node.sms, moe.copying_sms));
        }
        part.node = computing_part(cluster.node, cluster.node.sms - moe.copying_sms);
    }
    const ProgramFactory programs = [part, moe](int rank) {
        return std::make_unique<MoeProgram>(part, moe, rank);
    };
    return moe.copying_sms > 0 ? split_programs(cluster, moe.copying_sms, programs) : programs;
}

}  // namespace xstage::sim
