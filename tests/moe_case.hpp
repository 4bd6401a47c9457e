#pragma once

// A MoE layer with random numbers for all of its ranks, in host memory.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "ops/moe/reference.hpp"

namespace xstage::moe::suite {

/// One rank's numbers.
struct RankData {
    std::vector<std::byte> w1, w2, x;
    std::vector<float> s1, s2, x_scale, weights;
    std::vector<std::int32_t> experts;
    int tokens = 0;
};

struct Case {
    Problem problem;
    std::vector<RankData> ranks;

    Case(const Problem& p, const std::vector<int>& tokens, unsigned seed) : problem(p) {
        for (const int t : tokens) {
            std::mt19937 random(seed++);
            ranks.push_back(make_rank(t, random));
        }
    }

    Weights weights(std::size_t r) const {
        const RankData& d = ranks[r];
        return {d.w1.data(), d.w2.data(), d.s1.data(), d.s2.data()};
    }
    Input input(std::size_t r) const {
        const RankData& d = ranks[r];
        Input in;
        in.tokens = d.tokens;
        in.x = d.x.data();
        in.x_scale = d.x_scale.data();
        in.experts = d.experts.data();
        in.weights = d.weights.data();
        return in;
    }
    std::vector<std::vector<double>> reference(Rounding rounding) const {
        std::vector<Weights> all_weights;
        std::vector<Input> inputs;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            all_weights.push_back(weights(r));
            inputs.push_back(input(r));
        }
        return reference_layer(problem, all_weights, inputs, rounding);
    }

  private:
    void put(std::vector<std::byte>& to, std::size_t index, float value) const {
        if (problem.type == Type::kFp8) {
            to[index] = static_cast<std::byte>(to_e4m3(value));
        } else {
            const std::uint16_t bits = to_bf16(value);
            to[2 * index] = static_cast<std::byte>(bits & 0xff);
            to[2 * index + 1] = static_cast<std::byte>(bits >> 8);
        }
    }

    /// `count` numbers of about `size`; those under a scale are large, and the scale makes up for
    /// it.
    void fill(std::vector<std::byte>& to, std::vector<float>& scales, std::size_t count,
              std::size_t per_scale, float size, std::mt19937& random) const {
        std::normal_distribution<float> normal;
        std::uniform_real_distribution<float> about(0.5F, 1.5F);
        const bool scaled = problem.type == Type::kFp8;
        to.resize(count * static_cast<std::size_t>(problem.element_bytes()));
        // Alignment of the vector's memory is what malloc gives: 16 bytes.
        for (std::size_t i = 0; i < count; ++i)
            put(to, i, normal(random) * (scaled ? 64.0F : size));
        if (!scaled) return;
        scales.resize(count / per_scale);
        for (float& s : scales) s = about(random) * size / 64.0F;
    }

    RankData make_rank(int tokens, std::mt19937& random) const {
        const Problem& p = problem;
        RankData d;
        d.tokens = tokens;
        const auto h = static_cast<std::size_t>(p.hidden);
        const auto i = static_cast<std::size_t>(p.intermediate);
        const auto held = static_cast<std::size_t>(p.held_experts());
        const auto t = static_cast<std::size_t>(tokens);
        fill(d.w1, d.s1, held * 2 * i * h, kScaleGroup * kScaleGroup,
             1 / std::sqrt(static_cast<float>(h)), random);
        fill(d.w2, d.s2, held * i * h, kScaleGroup * kScaleGroup,
             1 / std::sqrt(static_cast<float>(i)), random);
        fill(d.x, d.x_scale, std::max<std::size_t>(t, 1) * h, kScaleGroup, 1, random);
        std::vector<std::int32_t> all(static_cast<std::size_t>(p.experts));
        std::iota(all.begin(), all.end(), 0);
        std::uniform_real_distribution<float> about(0.1F, 1);
        for (std::size_t token = 0; token < std::max<std::size_t>(t, 1); ++token) {
            std::shuffle(all.begin(), all.end(), random);
            for (int s = 0; s < p.top_k; ++s) {
                d.experts.push_back(all[static_cast<std::size_t>(s % p.experts)]);
                d.weights.push_back(about(random));
            }
        }
        return d;
    }
};

/// ||a - b|| / ||b|| over all ranks; infinite when one is NaN and the other is not.
inline double distance(const std::vector<std::vector<double>>& a,
                       const std::vector<std::vector<double>>& b) {
    double difference = 0;
    double size = 0;
    for (std::size_t r = 0; r < b.size(); ++r)
        for (std::size_t i = 0; i < b[r].size(); ++i) {
            if (std::isnan(a[r][i]) != std::isnan(b[r][i])) return INFINITY;
            if (std::isnan(b[r][i])) continue;
            difference += (a[r][i] - b[r][i]) * (a[r][i] - b[r][i]);
            size += b[r][i] * b[r][i];
        }
    return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// Orders that differ in everything an order can differ in.
inline std::vector<plan::MoeOrder> all_orders() {
    std::vector<plan::MoeOrder> orders;
    for (const char* name :
         {"wave:all",   "wave:1",        "wave:2",      "wave:4",     "wave:8",
          "alternate",  "alternate+264", "lead:1",      "lead:3",     "lead:16",
          "ratio",      "ratio+264",     "wave:all/16", "wave:2/3",   "lead:3/2",
          "lead:16/16", "ratio/4",       "wave:all*2",  "wave:2/3*2", "alternate+132/16*2",
          "lead:3*2"})
        orders.push_back(parse_order(name));
    return orders;
}

}  // namespace xstage::moe::suite
