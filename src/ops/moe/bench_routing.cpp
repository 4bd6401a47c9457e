#include "ops/moe/bench_routing.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace xstage::moe {
namespace {

/// Cards drawn one by one, none twice until the next token.
class Deck {
  public:
    void add(std::int32_t begin, std::int32_t end) {
        for (std::int32_t card = begin; card < end; ++card) cards_.push_back(card);
    }
    void shuffle_back() { taken_ = 0; }
    bool empty() const { return taken_ == cards_.size(); }
    std::int32_t draw(std::mt19937& random) {
        std::swap(cards_[taken_], cards_[taken_ + random() % (cards_.size() - taken_)]);
        return cards_[taken_++];
    }
    /// Puts `card` in the place of the first card drawn, unless it has been drawn.
    bool replace_first(std::int32_t card) {
        const auto drawn = cards_.begin() + static_cast<std::ptrdiff_t>(taken_);
        if (std::find(cards_.begin(), drawn, card) != drawn) return false;
        std::iter_swap(cards_.begin(), std::find(drawn, cards_.end(), card));
        return true;
    }

  private:
    std::vector<std::int32_t> cards_;
    std::size_t taken_ = 0;
};

/// Experts in two decks, and how often a slot is drawn from the first.
struct Decks {
    Deck first, rest;
    double share = 1;

    Decks(const Problem& p, int rank, Routing routing) {
        const bool to_rank0 = routing == Routing::kRank0;
        const int favoured = to_rank0 ? 0 : rank;
        const std::int32_t begin = favoured * p.local_experts();
        const std::int32_t end = begin + p.local_experts();
        if (routing != Routing::kAway && routing != Routing::kHome && !to_rank0) {
            first.add(0, p.experts);
            return;
        }
        share = to_rank0 ? 0.8 : routing == Routing::kHome ? 1 : 1.0 / 8;
        first.add(begin, end);
        rest.add(0, begin);
        rest.add(end, p.experts);
    }
    std::int32_t draw(std::mt19937& random) {
        // A deck that a token has used up hands over to the other.
        const bool one = rest.empty() || (!first.empty() && random() * 0x1p-32 < share);
        return one ? first.draw(random) : rest.draw(random);
    }
    void shuffle_back() {
        first.shuffle_back();
        rest.shuffle_back();
    }
};

}  // namespace

std::string name_of(Routing routing) {
    switch (routing) {
        case Routing::kBalanced:
            return "balanced";
        case Routing::kHot:
            return "hot";
        case Routing::kAway:
            return "away";
        case Routing::kHome:
            return "home";
        case Routing::kRank0:
            return "rank0";
        case Routing::kMasked:
            return "masked";
    }
    return "";
}

std::vector<std::int32_t> routes_of(const Problem& p, int tokens, int rank, Routing routing,
                                    unsigned seed) {
    std::mt19937 random(seed + 7919U * static_cast<unsigned>(rank));
    Decks decks(p, rank, routing);
    std::vector<std::int32_t> routes;
    for (int t = 0; t < tokens; ++t) {
        const std::size_t token = routes.size();
        decks.shuffle_back();
        for (int s = 0; s < p.top_k; ++s) routes.push_back(decks.draw(random));
        // A tenth of all routes is top_k tenths of the tokens, each with one slot there.
        if (routing == Routing::kHot && random() % 10000 < 1000U * static_cast<unsigned>(p.top_k) &&
            decks.first.replace_first(0))
            routes[token] = 0;
        if (routing == Routing::kMasked)
            for (std::size_t i = token; i < routes.size(); ++i)
                if (random() % 10 < 3) routes[i] = -1;
    }
    return routes;
}

std::vector<Load> loads_of(const Problem& p, const std::vector<std::vector<std::int32_t>>& routes) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(p.experts));
    std::vector<Load> loads(static_cast<std::size_t>(p.ranks));
    for (std::size_t r = 0; r < routes.size(); ++r)
        for (const std::int32_t e : routes[r]) {
            if (e < 0) continue;
            ++rows[static_cast<std::size_t>(e)];
            loads[r].away += static_cast<std::size_t>(e / p.local_experts()) != r ? 1 : 0;
        }
    for (std::size_t e = 0; e < rows.size(); ++e) {
        Load& load = loads[e / static_cast<std::size_t>(p.local_experts())];
        load.routes += rows[e];
        load.blocks += (rows[e] + kTileRows - 1) / kTileRows;
        load.experts_hit += rows[e] > 0 ? 1 : 0;
        load.most = std::max(load.most, rows[e]);
    }
    return loads;
}

}  // namespace xstage::moe
