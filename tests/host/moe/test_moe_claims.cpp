// The deadlock rule: every interleaving of CTAs that claim tasks in order and do them in order,
// with a ring of blocks between the pulling and Linear-2, on problems small enough to try them all.

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <vector>

#include "xstage/moe/plan.hpp"

namespace xstage::moe {
namespace {

struct Grid {
    std::vector<std::int32_t> begin;
    plan::MoeGrid grid;
    std::vector<plan::MoeTile> tiles;

    Grid(std::vector<std::int32_t> rows, int n1, int n2, const plan::MoeOrder& order)
        : begin(std::move(rows)) {
        grid = {static_cast<std::int32_t>(begin.size()) - 1, n1, n2, begin.data()};
        const plan::MoeTurns turns = plan::turns_of(grid, order);
        for (std::int64_t i = 0; i < grid.size(); ++i)
            tiles.push_back(plan::moe_tile_at(grid, order, turns, i));
    }
};

/// Explores all states: how many tasks are claimed, and which each CTA holds, first the one it
/// works on. Everything claimed and not held is finished.
class Explorer {
  public:
    Explorer(const Grid& grid, int ctas, std::size_t held, int ring)
        : grid_(grid), held_(held), ring_(ring) {
        State start;
        start.cta.resize(static_cast<std::size_t>(ctas));
        seen_.insert(start);
        open_.push_back(start);
    }

    /// States from which no CTA can go on although tasks are left.
    int deadlocks() {
        int stuck = 0;
        while (!open_.empty()) {
            const State s = open_.front();
            open_.pop_front();
            bool moved = false;
            for (std::size_t c = 0; c < s.cta.size(); ++c) {
                if (s.cta[c].size() < held_ && s.claimed < grid_.tiles.size()) {
                    State next = s;
                    next.cta[c].push_back(next.claimed++);
                    moved = true;
                    visit(next);
                }
                if (!s.cta[c].empty() && can_run(s, s.cta[c].front())) {
                    State next = s;
                    next.cta[c].erase(next.cta[c].begin());
                    moved = true;
                    visit(next);
                }
            }
            const bool over =
                s.claimed == grid_.tiles.size() &&
                std::all_of(s.cta.begin(), s.cta.end(), [](const auto& q) { return q.empty(); });
            if (!moved && !over) ++stuck;
        }
        return stuck;
    }
    std::size_t states() const { return seen_.size(); }

  private:
    struct State {
        std::size_t claimed = 0;
        std::vector<std::vector<std::size_t>> cta;
        auto operator<=>(const State&) const = default;
    };

    void visit(const State& s) {
        if (seen_.insert(s).second) open_.push_back(s);
    }
    bool finished(const State& s, std::size_t task) const {
        if (task >= s.claimed) return false;
        for (const auto& queue : s.cta)
            if (std::find(queue.begin(), queue.end(), task) != queue.end()) return false;
        return true;
    }
    /// All tiles of one kind and block.
    bool block_done(const State& s, bool second, int row) const {
        for (std::size_t i = 0; i < grid_.tiles.size(); ++i)
            if (grid_.tiles[i].second == second && grid_.tiles[i].row == row && !finished(s, i))
                return false;
        return true;
    }
    bool can_run(const State& s, std::size_t task) const {
        const plan::MoeTile& tile = grid_.tiles[task];
        if (tile.second) return block_done(s, false, tile.row);
        // Rows are pulled in order, each block once its place in the ring is free.
        for (int row = 0; row + ring_ <= tile.row; ++row)
            if (!block_done(s, true, row)) return false;
        return true;
    }

    const Grid& grid_;
    std::size_t held_;
    int ring_;
    std::set<State> seen_;
    std::deque<State> open_;
};

const std::vector<std::pair<int, int>> kTiles = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};
const std::vector<std::vector<std::int32_t>> kRows = {
    {0, 1}, {0, 3}, {0, 0, 2, 2, 3}, {0, 1, 2, 4}};

TEST(MoeClaims, NoOrderCanDeadlock) {
    for (const char* name :
         {"wave:1", "wave:2", "wave:all", "alternate", "alternate+2", "ratio", "ratio+3", "lead:1",
          "lead:2", "lead:2/2", "wave:2/2", "ratio/2", "alternate/3"})
        for (const auto& [n1, n2] : kTiles)
            for (const auto& rows : kRows) {
                const plan::MoeOrder order = parse_order(name);
                const Grid grid(rows, n1, n2, order);
                const int ring = order.kind == plan::MoeOrderKind::kLead
                                     ? plan::least_ring(order)
                                     : static_cast<int>(grid.grid.rows());
                Explorer explorer(grid, 2, 2, ring);
                EXPECT_EQ(explorer.deadlocks(), 0) << name << " " << n1 << ":" << n2;
                EXPECT_GT(explorer.states(), grid.tiles.size());
            }
}

TEST(MoeClaims, ThreeCtasAndThreeTasksEach) {
    const plan::MoeOrder order = parse_order("lead:1");
    const Grid grid({0, 1, 3}, 1, 2, order);
    EXPECT_EQ(Explorer(grid, 3, 3, 2).deadlocks(), 0);
}

// The ring that the plan asks for is the smallest that works: with one block less, and with a wave
// that does not fit, the explorer finds the deadlock.
TEST(MoeClaims, ASmallerRingDeadlocks) {
    const plan::MoeOrder lead = parse_order("lead:2");
    const Grid grid({0, 4}, 1, 1, lead);
    EXPECT_EQ(Explorer(grid, 2, 2, 3).deadlocks(), 0);
    EXPECT_GT(Explorer(grid, 2, 2, 2).deadlocks(), 0);
    const Grid wave({0, 4}, 1, 1, parse_order("wave:1"));
    EXPECT_GT(Explorer(wave, 2, 2, 3).deadlocks(), 0);
    Problem p;
    p.max_tokens = 512;
    p.hidden = 256;
    p.intermediate = 128;
    p.experts = p.top_k = 1;
    EXPECT_EQ(least_ring(p, lead), 3);
    EXPECT_EQ(least_ring(p, parse_order("wave:1")), 4);
}

}  // namespace
}  // namespace xstage::moe
