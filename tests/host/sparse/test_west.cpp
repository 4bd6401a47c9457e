#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "synthetic.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/west.hpp"

namespace xstage::sparse {
namespace {

using test::kSpatial;
using test::kTemporal;
using test::Masses;
using test::synthetic_mass;
using test::Topology;

TEST(Half, RoundsAwayFromZeroAndBack) {
    EXPECT_EQ(half_to_float(half_above(1.0)), 1.0F);
    EXPECT_EQ(half_to_float(half_above(0.5)), 0.5F);
    EXPECT_EQ(half_above(0.0), 0);
    EXPECT_EQ(half_above(std::nextafter(0.5, 1.0)), 0x3801);
    EXPECT_EQ(half_above(std::nextafter(1.0, 0.0)), 0x3c00);  // carries into the exponent
    EXPECT_EQ(half_to_float(0x3555), 0.333251953125F);
    EXPECT_EQ(half_above(1.0 / 3), 0x3556);
    EXPECT_EQ(half_to_float(0x0001), std::ldexp(1.0F, -24));
    EXPECT_EQ(half_above(1e-30), 1);
    for (int bits = 0; bits <= 0x3c00; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        ASSERT_EQ(half_above(half_to_float(half)), half);
    }
}

TEST(Thresholds, LeaveTheMassOfTheLargerBlocksOfTheRow) {
    const std::vector<double> mass = {0.5, 0.125, 0.375, 0.2, 0.4, 0.4, 1, 0, 0};
    const std::vector<double> r = remainders_of(mass, 3);
    const std::vector<double> want = {1, 0.125, 0.5, 0.2, 1, 1, 1, 0, 0};
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_DOUBLE_EQ(r[i], want[i]) << i;
}

TEST(Thresholds, BadMassesAreRefused) {
    WestCalibration west(1, {0, 1, 16, 16});
    EXPECT_THROW(west.add(0, std::vector<double>{1, 0, 0, 0}), Error);  // a row without mass
    EXPECT_THROW(west.add(0, std::vector<double>{1, 0, -1, 2}), Error);
    EXPECT_THROW(west.add(0, std::vector<double>{1, 0, NAN, 1}), Error);
    EXPECT_THROW(west.add(0, std::vector<double>{1, 0, 1}), Error);
    EXPECT_THROW(west.add(1, std::vector<double>{1, 0, 0, 1}), Error);
}

/// The definition, by brute force: the smallest p at which some prompt's top-p set of the row,
/// found by sorting and summing, holds the block.
TEST(West, EqualsBruteForceOverStoredAttention) {
    constexpr std::int64_t kRows = 700;
    constexpr int kDim = 16;
    const TokenLayout layout{0, 1, 1, kRows};
    const std::int64_t blocks = blocks_of(kRows);
    WestCalibration west(1, layout);
    std::vector<double> lowest(static_cast<std::size_t>(blocks * blocks), 1.0);
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 2);
    for (int prompt = 0; prompt < 3; ++prompt) {
        std::vector<float> q(kRows * kDim);
        std::vector<float> k(kRows * kDim);
        for (float& x : q) x = normal(random);
        for (float& x : k) x = normal(random);
        west.add(0, block_mass({q.data(), kDim}, {k.data(), kDim}, kRows, kDim));

        std::vector<double> p(kRows * kRows);  // S x S, stored
        for (std::int64_t i = 0; i < kRows; ++i) {
            double sum = 0;
            for (std::int64_t j = 0; j < kRows; ++j) {
                double dot = 0;
                for (int c = 0; c < kDim; ++c) dot += double{q[i * kDim + c]} * k[j * kDim + c];
                sum += p[i * kRows + j] = std::exp(dot / 4);
            }
            for (std::int64_t j = 0; j < kRows; ++j) p[i * kRows + j] /= sum;
        }
        for (std::int64_t u = 0; u < blocks; ++u) {
            std::vector<std::pair<double, std::int64_t>> row;
            double rows = 0;
            for (std::int64_t v = 0; v < blocks; ++v) {
                double mass = 0;
                rows = static_cast<double>(std::min<std::int64_t>(128, kRows - u * 128));
                for (std::int64_t i = u * 128; i < std::min(kRows, u * 128 + 128); ++i) {
                    for (std::int64_t j = v * 128; j < std::min(kRows, v * 128 + 128); ++j) {
                        mass += p[i * kRows + j];
                    }
                }
                row.emplace_back(-mass / rows, v);
            }
            std::sort(row.begin(), row.end());
            double before = 0;
            for (const auto& [negative, v] : row) {
                double& t = lowest[static_cast<std::size_t>(u * blocks + v)];
                t = std::min(t, before);
                before -= negative;
            }
        }
    }
    const ThresholdMap map = west.map();
    for (std::int64_t u = 0; u < blocks; ++u) {
        for (std::int64_t v = 0; v < blocks; ++v) {
            const double want = lowest[static_cast<std::size_t>(u * blocks + v)];
            EXPECT_LE(map.at(0, u, v), want + 1e-6) << u << ' ' << v;
            EXPECT_GE(map.at(0, u, v), want - 1.0 / 1024 - 1e-6) << u << ' ' << v;
        }
    }
}

TEST(West, AttentionMassOfRowsSumsToOneAndMatchesTheBlocks) {
    constexpr std::int64_t kRows = 300;
    std::vector<float> q(kRows * 8);
    std::vector<float> k(kRows * 8);
    for (std::size_t i = 0; i < q.size(); ++i) {
        q[i] = std::sin(static_cast<float>(i));
        k[i] = std::cos(static_cast<float>(3 * i));
    }
    std::vector<std::int64_t> all(128);
    for (std::int64_t i = 0; i < 128; ++i) all[static_cast<std::size_t>(i)] = 128 + i;
    const auto rows = row_mass({q.data(), 8}, {k.data(), 8}, kRows, 8, all);
    const auto blocks = block_mass({q.data(), 8}, {k.data(), 8}, kRows, 8);
    for (std::size_t v = 0; v < 3; ++v) {
        double sum = 0;
        for (std::size_t i = 0; i < 128; ++i) sum += rows[i * 3 + v];
        EXPECT_NEAR(sum / 128, blocks[3 + v], 1e-12);
    }
    EXPECT_NEAR(rows[0] + rows[1] + rows[2], 1, 1e-12);
    q[5] = NAN;
    EXPECT_THROW(block_mass({q.data(), 8}, {k.data(), 8}, kRows, 8), Error);
}

constexpr TokenLayout kSmall{0, 7, 30, 52};  // 480p latents of 7 frames
constexpr TokenLayout kLarge{0, 7, 45, 80};  // 720p

TEST(West, RecoversPlantedMassOnAPromptItHasNotSeen) {
    WestCalibration west(2, kSmall);
    for (unsigned prompt = 0; prompt < 3; ++prompt) {
        Topology noisy = kSpatial;
        noisy.background = 1e-5;
        west.add(0, synthetic_mass(kSmall, noisy, prompt, 0.5).all);
        noisy = kTemporal;
        noisy.background = 1e-5;
        west.add(1, synthetic_mass(kSmall, noisy, prompt, 0.5).all);
    }
    const BlockMask mask = west.map().mask(0.99F);
    const Topology topologies[] = {kSpatial, kTemporal};
    for (std::int64_t h = 0; h < 2; ++h) {
        Topology noisy = topologies[h];
        noisy.background = 1e-5;
        const Masses unseen = synthetic_mass(kSmall, noisy, 77, 0.5);
        EXPECT_GE(recall(mask, h, unseen.planted), 0.99) << "head " << h;
        EXPECT_LT(mask.density(0, h), 0.75) << "a mask that keeps everything recalls everything";
    }
}

TEST(West, MasksNestAndReachTheDensityAskedFor) {
    WestCalibration west(2, kSmall);
    Topology spatial = kSpatial;
    Topology temporal = kTemporal;
    spatial.background = temporal.background = 1e-5;
    west.add(0, synthetic_mass(kSmall, spatial, 1, 0.5).all);
    west.add(1, synthetic_mass(kSmall, temporal, 1, 0.5).all);
    const ThresholdMap map = west.map();
    BlockMask last = map.mask(0.0F);
    for (const float p : {0.3F, 0.5F, 0.8F, 0.9F, 0.95F, 0.99F, 1.0F}) {
        const BlockMask next = map.mask(p);
        EXPECT_TRUE(last.within(next)) << p;
        EXPECT_NEAR(map.density(0, p), next.density(0, 0), 1e-12);
        last = next;
    }
    EXPECT_EQ(last.density(), 1.0);
    for (std::int64_t u = 0; u < map.blocks(); ++u) {
        EXPECT_GT(map.mask(0.0F).keys(0, 0, u), 0) << "a row keeps its largest block";
    }
    for (const double density : {0.15, 0.2, 0.3, 0.5, 0.75}) {
        const BlockMask mask = map.mask_of_density(density);
        EXPECT_GE(mask.density(), density);
        EXPECT_LT(mask.density(), density + 0.01);
    }
}

TEST(West, AMapOf480pServes720p) {
    WestCalibration west(2, kSmall);
    west.add(0, synthetic_mass(kSmall, kSpatial, 1, 0.3).all);
    west.add(1, synthetic_mass(kSmall, kTemporal, 1, 0.3).all);
    const ThresholdMap map = west.map().resampled(kLarge);
    EXPECT_EQ(map.layout(), kLarge);
    const BlockMask mask = map.mask(0.95F);
    EXPECT_GE(recall(mask, 0, synthetic_mass(kLarge, kSpatial, 9, 0.3).all), 0.96);
    EXPECT_GE(recall(mask, 1, synthetic_mass(kLarge, kTemporal, 9, 0.3).all), 0.96);
    EXPECT_LT(mask.density(), 0.7);
}

TEST(West, ResamplingToTheSameLayoutChangesNothingAndNeverRaisesAThreshold) {
    WestCalibration west(1, kSmall);
    west.add(0, synthetic_mass(kSmall, kSpatial, 1, 0).all);
    const ThresholdMap map = west.map();
    EXPECT_EQ(map.resampled(kSmall).remainders(), map.remainders());
    // Twice the frames of one picture: each new frame lies between two old ones.
    const ThresholdMap longer = map.resampled({0, 14, 30, 52});
    const TokenLayout doubled{0, 14, 30, 52};
    // Old frame f lies beside new frame 2f, so what was kept for a pair of old tokens is kept
    // there.
    const auto moved = [](std::int64_t token) { return token + token / (30 * 52) * (30 * 52); };
    for (std::int64_t i = 0; i < kSmall.rows(); i += 97) {
        for (std::int64_t j = 0; j < kSmall.rows(); j += 101) {
            ASSERT_LE(longer.at(0, moved(i) / kBlock, moved(j) / kBlock),
                      map.at(0, i / kBlock, j / kBlock));
        }
    }
    EXPECT_EQ(longer.layout(), doubled);
    EXPECT_THROW((void)map.resampled({77, 7, 30, 52}), Error);
}

TEST(West, TextRowsAndColumnsAreDenseAtAnyTopP) {
    const TokenLayout layout{77, 2, 16, 24};  // block 0 holds all text
    const std::int64_t blocks = blocks_of(layout.rows());
    std::vector<std::uint16_t> halves(static_cast<std::size_t>(blocks * blocks), 0);
    const ThresholdMap map(1, layout, halves);
    const BlockMask mask = map.mask(0.5F);
    for (std::int64_t v = 0; v < blocks; ++v) {
        EXPECT_TRUE(mask.test(0, 0, 0, v));
        EXPECT_TRUE(mask.test(0, 0, v, 0));
        EXPECT_EQ(mask.test(0, 0, v, 1), v == 0);
    }
    EXPECT_NEAR(mask.density(0, 0), map.density(0, 0.5F), 1e-12);
}

TEST(West, MapsAreChecked) {
    EXPECT_THROW(ThresholdMap(1, {0, 1, 16, 16}, {0, 0, 0}), Error);
    EXPECT_THROW(ThresholdMap(1, {0, 1, 16, 16}, {0, 0, 0, 0x3c01}), Error);  // above 1
    EXPECT_THROW(ThresholdMap(1, {0, 1, 16, 16}, {0, 0, 0, 0x8000}), Error);  // negative
    EXPECT_THROW(ThresholdMap(0, {0, 1, 16, 16}, {}), Error);
    EXPECT_THROW(WestCalibration(1, {0, 1, 0, 16}), Error);
}

}  // namespace
}  // namespace xstage::sparse
