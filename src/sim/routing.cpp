#include "sim/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/file.hpp"
#include "core/json.hpp"
#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

/// SplitMix64: the standard generators' distributions differ between libraries, this does not.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  private:
    std::uint64_t state_;
};

/// Draws indices with given weights in constant time (Walker's alias method).
class Alias {
  public:
    explicit Alias(const std::vector<double>& weights)
        : threshold_(weights.size(), 1.0), other_(weights.size()) {
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        const auto n = static_cast<double>(weights.size());
        std::vector<double> scaled;
        std::vector<std::size_t> small, large;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            other_[i] = i;
            scaled.push_back(weights[i] / sum * n);
            (scaled.back() < 1 ? small : large).push_back(i);
        }
        while (!small.empty() && !large.empty()) {
            const std::size_t s = small.back(), l = large.back();
            small.pop_back();
            threshold_[s] = scaled[s];
            other_[s] = l;
            scaled[l] -= 1 - scaled[s];
            if (scaled[l] < 1) {
                large.pop_back();
                small.push_back(l);
            }
        }
    }
    std::size_t draw(Random& random) const {
        const double x = random.uniform() * static_cast<double>(threshold_.size());
        const auto i = std::min(static_cast<std::size_t>(x), threshold_.size() - 1);
        return x - static_cast<double>(i) < threshold_[i] ? i : other_[i];
    }

  private:
    std::vector<double> threshold_;
    std::vector<std::size_t> other_;
};

std::vector<double> popularity(const RoutingSeed& how) {
    std::vector<double> weights(static_cast<std::size_t>(how.experts), 1.0);
    if (how.skew <= 0) return weights;
    std::vector<std::size_t> rank(weights.size());
    std::iota(rank.begin(), rank.end(), std::size_t{0});
    Random random(how.seed ^ 0x5eedULL);
    for (std::size_t i = rank.size(); i > 1; --i) std::swap(rank[i - 1], rank[random.next() % i]);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        weights[i] = std::pow(static_cast<double>(rank[i]) + 1, -how.skew);
    }
    return weights;
}

}  // namespace

std::int32_t Routing::total(int expert) const {
    std::int32_t sum = 0;
    for (int s = 0; s < gpus; ++s) sum += at(expert, s);
    return sum;
}

Routing seeded_routing(const RoutingSeed& how) {
    Routing out{how.experts, how.gpus, {}};
    out.rows.resize(static_cast<std::size_t>(how.experts) * static_cast<std::size_t>(how.gpus));
    const std::vector<double> weights = popularity(how);
    const int local = how.experts / how.gpus;
    const auto at = [&](std::size_t e, int s) -> std::int32_t& {
        return out.rows[e * static_cast<std::size_t>(how.gpus) + static_cast<std::size_t>(s)];
    };
    for (int s = 0; s < how.gpus; ++s) {
        std::vector<double> mine = weights;
        if (how.remote_share >= 0) {
            double own = 0, all = 0;
            for (int e = 0; e < how.experts; ++e) {
                all += weights[static_cast<std::size_t>(e)];
                if (e / local == s) own += weights[static_cast<std::size_t>(e)];
            }
            for (int e = 0; e < how.experts; ++e) {
                mine[static_cast<std::size_t>(e)] *=
                    e / local == s ? (1 - how.remote_share) / own : how.remote_share / (all - own);
            }
        }
        const Alias alias(mine);
        Random random(how.seed * 0x100000001b3ULL + static_cast<std::uint64_t>(s));
        std::vector<std::size_t> chosen(static_cast<std::size_t>(how.top_k));
        for (std::int64_t t = 0; t < how.tokens[static_cast<std::size_t>(s)]; ++t) {
            for (std::size_t k = 0; k < chosen.size();) {
                const std::size_t e = alias.draw(random);
                const auto end = chosen.begin() + static_cast<std::ptrdiff_t>(k);
                if (std::find(chosen.begin(), end, e) != end) continue;
                chosen[k++] = e;
                ++at(e, s);
            }
        }
    }
    return out;
}

Routing balanced_routing(int experts, int gpus, int top_k, std::int64_t tokens) {
    Routing out{experts, gpus, {}};
    for (int e = 0; e < experts; ++e) {
        for (int s = 0; s < gpus; ++s) {
            const std::int64_t routes = tokens * top_k;
            const std::int64_t turn = (e + s) % experts;  // so that no expert gets all remainders
            out.rows.push_back(
                static_cast<std::int32_t>(routes / experts + (turn < routes % experts ? 1 : 0)));
        }
    }
    return out;
}

Routing read_routing(const std::string& path, int experts, int gpus) {
    const core::Json file = core::parse_json(core::read_file(path), path);
    const auto fail = [&](const std::string& where, const std::string& wanted) {
        throw Error(ErrorKind::kBadInput, fmt::format("{}: {}: expected {}", path, where, wanted));
    };
    if (!file.is_object() || !file.contains("ids") || !file["ids"].is_array()) {
        fail("/ids", "an array of expert ids per GPU");
    }
    const core::Json& ids = file["ids"];
    if (static_cast<int>(ids.size()) != gpus) {
        fail("/ids", fmt::format("{} GPUs, found {}", gpus, ids.size()));
    }
    Routing out{experts, gpus, {}};
    out.rows.resize(static_cast<std::size_t>(experts) * static_cast<std::size_t>(gpus));
    for (std::size_t s = 0; s < ids.size(); ++s) {
        if (!ids[s].is_array()) fail(fmt::format("/ids/{}", s), "an array of tokens");
        for (std::size_t t = 0; t < ids[s].size(); ++t) {
            const core::Json& token = ids[s][t];
            if (!token.is_array()) fail(fmt::format("/ids/{}/{}", s, t), "an array of expert ids");
            for (std::size_t k = 0; k < token.size(); ++k) {
                if (!token[k].is_number_integer() || token[k].get<std::int64_t>() >= experts) {
                    fail(fmt::format("/ids/{}/{}/{}", s, t, k),
                         fmt::format("an expert id below {}, or a negative one for a masked route",
                                     experts));
                }
                const auto e = token[k].get<std::int64_t>();
                if (e >= 0) ++out.rows[static_cast<std::size_t>(e) * ids.size() + s];
            }
        }
    }
    return out;
}

}  // namespace xstage::sim
