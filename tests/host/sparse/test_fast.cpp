#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "xstage/error.hpp"
#include "xstage/sparse/fast.hpp"

namespace xstage::sparse {
namespace {

constexpr TokenLayout kLayout{0, 4, 16, 60};  // 3840 rows, 30 blocks
constexpr std::int64_t kBlocks = 30;

/// Attention whose mass falls off with the distance in blocks, at another rate for each head.
std::vector<double> mass_of(double rate, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> jitter(0.5, 1.5);
    std::vector<double> mass(kBlocks * kBlocks);
    for (std::int64_t u = 0; u < kBlocks; ++u) {
        double sum = 0;
        for (std::int64_t v = 0; v < kBlocks; ++v) {
            sum += mass[u * kBlocks + v] =
                std::exp(-rate * static_cast<double>(std::abs(u - v))) * jitter(random);
        }
        for (std::int64_t v = 0; v < kBlocks; ++v) mass[u * kBlocks + v] /= sum;
    }
    return mass;
}

struct Model {
    std::vector<ThresholdMap> maps;
    std::vector<RowSamples> samples;
};

Model model(std::int64_t layers, std::int64_t steps, std::int64_t heads) {
    Model m;
    unsigned seed = 0;
    for (std::int64_t l = 0; l < layers; ++l) {
        WestCalibration west(heads, kLayout);
        std::vector<RowSamples> of_layer(static_cast<std::size_t>(steps));
        for (std::int64_t t = 0; t < steps; ++t) {
            RowSamples& s = of_layer[static_cast<std::size_t>(t)];
            s.rows = stratified_rows(kLayout.rows());
            for (std::int64_t h = 0; h < heads; ++h) {
                const auto mass = mass_of(0.1 + 0.15 * static_cast<double>(h + l), ++seed);
                west.add(h, mass);
                for (const std::int64_t row : s.rows) {
                    for (std::int64_t v = 0; v < kBlocks; ++v) {
                        s.mass.push_back(static_cast<float>(mass[row / 128 * kBlocks + v]));
                    }
                }
            }
        }
        m.maps.push_back(west.map());
        m.samples.insert(m.samples.end(), of_layer.begin(), of_layer.end());
    }
    return m;
}

TEST(Fidelity, IsOneMinusTheHellingerDistanceToTheRenormalisedRow) {
    // The definition, on a row that is written out.
    const std::vector<double> p = {0.4, 0.3, 0.2, 0.1};
    const std::vector<bool> kept = {true, false, true, false};
    const double m = 0.6;
    double squares = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const double q = kept[i] ? p[i] / m : 0;
        squares += std::pow(std::sqrt(p[i]) - std::sqrt(q), 2);
    }
    EXPECT_NEAR(fidelity_of_mass(m), 1 - std::sqrt(squares / 2), 1e-12);
    EXPECT_EQ(fidelity_of_mass(1), 1);
    EXPECT_EQ(fidelity_of_mass(0), 0);
}

TEST(Fidelity, RowsAreOnePerStratum) {
    const auto rows = stratified_rows(32768);
    ASSERT_EQ(rows.size(), 16U);
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(rows[i] / 2048, static_cast<std::int64_t>(i));
    }
    EXPECT_EQ(stratified_rows(3).size(), 3U);
}

TEST(Schedule, EarlyStepsAndShallowLayersAreHeldToMore) {
    FidelitySchedule a;
    a.strength = 0.5;
    for (std::int64_t l = 0; l < 4; ++l) {
        for (std::int64_t t = 0; t < 9; ++t) {
            EXPECT_GT(a.target(l, 5, t, 10), a.target(l + 1, 5, t, 10));
            EXPECT_GT(a.target(l, 5, t, 10), a.target(l, 5, t + 1, 10));
        }
    }
    EXPECT_NEAR(a.target(0, 5, 0, 10), 1 - 0.5 * 0.25, 1e-12);
    EXPECT_NEAR(a.target(4, 5, 9, 10), 0.5, 1e-12);
    EXPECT_NEAR(a.target(0, 1, 0, 1), 1 - 0.5 * 0.25,
                1e-12);  // one layer and step: no division by 0
}

TEST(Fast, MeetsTheBudgetWithinAPercentAndTheTargetInEveryHead) {
    const Model m = model(3, 4, 5);
    for (const double budget : {0.2, 0.45, 0.6, 0.75}) {
        const Budgets b = tune(m.maps, m.samples, 4, budget);
        EXPECT_LE(b.density, budget + 1e-12);
        EXPECT_GE(b.density, 0.99 * budget);
        double sum = 0;
        for (std::int64_t l = 0; l < 3; ++l) {
            for (std::int64_t t = 0; t < 4; ++t) {
                for (std::int64_t h = 0; h < 5; ++h) {
                    const float p = b.at(l, t)[static_cast<std::size_t>(h)];
                    const double got = fidelity(m.maps[l], h, m.samples[l * 4 + t], p).mean;
                    EXPECT_GE(got, b.schedule.target(l, 3, t, 4) - 1e-9) << l << t << h;
                    sum += m.maps[l].density(h, p);
                }
            }
        }
        EXPECT_NEAR(sum / 60, b.density, 1e-9) << "the density is that of the masks";
    }
}

TEST(Fast, PicksTheSparsestMaskThatReachesTheTarget) {
    const Model m = model(2, 2, 3);
    const Budgets b = tune(m.maps, m.samples, 2, 0.5);
    std::int64_t tight = 0;
    for (std::int64_t l = 0; l < 2; ++l) {
        for (std::int64_t t = 0; t < 2; ++t) {
            for (std::int64_t h = 0; h < 3; ++h) {
                // Brute force over every threshold of the map.
                float want = 1;
                for (const float p : m.maps[l].levels(h)) {
                    if (fidelity(m.maps[l], h, m.samples[l * 2 + t], p).mean >=
                        b.schedule.target(l, 2, t, 2)) {
                        want = p;
                        break;
                    }
                }
                const float got = b.at(l, t)[static_cast<std::size_t>(h)];
                EXPECT_GE(got, want);
                tight += got == want;
            }
        }
    }
    EXPECT_GE(tight, 10) << "only what rounding left over may be spent beyond the targets";
}

TEST(Fast, ABudgetOfOneKeepsEverythingAndTooSmallAOneIsRefused) {
    // With many heads the densities' sum rounds, and 14 of 30 block rows have no sampled row.
    for (const std::int64_t heads : {1, 2, 3, 5, 7, 11}) {
        const Model all = model(2, 2, heads);
        const Budgets budgets = tune(all.maps, all.samples, 2, 1);
        for (std::int64_t i = 0; i < 4 * heads; ++i) {
            const ThresholdMap& map = all.maps[static_cast<std::size_t>(i / heads / 2)];
            EXPECT_EQ(budgets.top_p[static_cast<std::size_t>(i)], map.levels(i % heads).back());
        }
    }
    const Model m = model(1, 2, 2);
    try {
        (void)tune(m.maps, m.samples, 2, 0.01);
        ADD_FAILURE() << "one block of 30 in each row is 0.033";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("least possible"), std::string::npos);
    }
    EXPECT_THROW((void)tune(m.maps, m.samples, 3, 0.5), Error);
    EXPECT_THROW((void)tune(m.maps, m.samples, 2, 1.5), Error);
    FidelitySchedule wrong;
    wrong.gamma = -1;
    EXPECT_THROW((void)tune(m.maps, m.samples, 2, 0.5, wrong), Error);
}

TEST(Fast, TheWorstRowIsReported) {
    const Model m = model(1, 1, 1);
    const Fidelity f = fidelity(m.maps[0], 0, m.samples[0], 0.5F);
    EXPECT_LT(f.worst, f.mean);
    EXPECT_GT(f.worst, 0);
}

}  // namespace
}  // namespace xstage::sparse
