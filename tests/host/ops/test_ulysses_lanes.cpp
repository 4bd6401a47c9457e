// The arithmetic of a lane in the first all-to-all kernel against the host's, element by element,
// for every family of norms and rotations: the kernel's own functions, run without a GPU.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/ulysses/mover.hpp"
#include "ulysses/lanes.cuh"

namespace xstage::ulysses {
namespace {

constexpr int kRows = 5;

struct Family {
    const char* name;
    int heads, dim;
    NormKind norm;
    NormRounding rounding;
    Rotary rotary;
    int table;  ///< entries for kRows rows
};

std::vector<Family> families() {
    const float at[2] = {};
    const float* none = nullptr;
    std::vector<Family> all = {
        {"values", 3, 128, NormKind::kNone, NormRounding::kOnce, {}, 0},
        {"wan", 4, 128, NormKind::kFullWidth, NormRounding::kOnce, rotary::wan(none, none, 128),
         kRows * 128},
        {"flux", 3, 128, NormKind::kPerHead, NormRounding::kOnce, rotary::flux(none, none, 128),
         kRows * 128},
        {"hunyuan", 3, 128, NormKind::kPerHead, NormRounding::kTwice, rotary::flux(none, none, 128),
         kRows * 128},
        {"qwen", 3, 128, NormKind::kPerHead, NormRounding::kTwice, rotary::qwen_image(at, 128),
         kRows * 128},
        {"ltx split", 4, 64, NormKind::kFullWidth, NormRounding::kOnce,
         rotary::ltx2_split(none, none, 4, 64, kRows), 4 * kRows * 32},
        {"ltx interleaved", 4, 64, NormKind::kFullWidth, NormRounding::kTwice,
         rotary::ltx2_interleaved(none, none, 4, 64, kRows), 4 * kRows * 64},
        {"minimax", 3, 128, NormKind::kPerHead, NormRounding::kOnce, rotary::minimax_h3(none, none),
         kRows * 96},
        {"third", 3, 96, NormKind::kPerHead, NormRounding::kOnce, rotary::wan(none, none, 96),
         kRows * 96}};
    Family fused = all[2];
    fused.name = "fused";
    fused.rotary.math = RotaryMath::kFused;
    all.push_back(fused);
    return all;
}

/// Sum over lanes as the kernels do it: in pairs at distance 16, 8, 4, 2, 1, then warp by warp.
float over_lanes(std::vector<float> lane) {
    float total = 0;
    for (std::size_t warp = 0; warp < lane.size(); warp += 32) {
        for (std::size_t distance = 16; distance > 0; distance /= 2) {
            const std::vector<float> before = lane;
            for (std::size_t l = 0; l < 32; ++l)
                lane[warp + l] = exact::add(before[warp + l], before[warp + (l ^ distance)]);
        }
        total = warp == 0 ? lane[0] : exact::add(total, lane[warp]);
    }
    return total;
}

template <class T>
float rstd_of(const T* x, int count, int lanes, float eps) {
    std::vector<float> lane(static_cast<std::size_t>(lanes));
    for (int g = 0; g * kernels::kVector < count; ++g) {
        float& mine = lane[static_cast<std::size_t>(g % lanes)];
        mine = exact::add(mine, kernels::sum_of_squares(kernels::load(x + g * kernels::kVector)));
    }
    return exact::rsqrt(exact::add(over_lanes(lane) / static_cast<float>(count), eps));
}

template <class T>
void expect_the_hosts_bits(const Family& f, bool table_fp32, bool weight_fp32) {
    using kernels::kVector;
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    const std::size_t width = static_cast<std::size_t>(f.heads) * f.dim;
    struct alignas(16) Word {
        T element[8];
    };
    std::vector<Word> in(kRows * width / 8), out(in.size()), weights(width / 8);
    for (Word& w : in)
        for (T& x : w.element) x = T::from(2 * normal(random));
    std::vector<float> cos(static_cast<std::size_t>(f.table) + 8), sin(cos.size()), heavy(width);
    std::vector<T> cos_t(cos.size()), sin_t(cos.size());
    for (std::size_t i = 0; i < cos.size(); ++i) {
        const float angle = 3 * normal(random);
        cos_t[i] = T::from(cos[i] = std::cos(angle));
        sin_t[i] = T::from(sin[i] = std::sin(angle));
    }
    for (std::size_t i = 0; i < width; ++i)
        weights[i / 8].element[i % 8] = T::from(heavy[i] = 1 + 0.1f * normal(random));

    HeadScatter s;
    s.dtype =
        sizeof(T) == 2 && std::is_same_v<T, Bf16> ? fabric::DType::kBf16 : fabric::DType::kF16;
    s.world = 1;
    s.head_dim = f.dim;
    s.rows = kRows;
    s.heads = s.head_count[0] = f.heads;
    s.from = in.data();
    s.to[0] = out.data();
    s.from_row = s.to_row[0] = static_cast<std::int64_t>(width);
    s.from_head = f.dim;
    s.map.world = 1;
    s.norm = {f.norm, f.rounding, weight_fp32,
              weight_fp32 ? static_cast<const void*>(heavy.data()) : weights.data(), 1e-6f};
    s.rotary = f.rotary;
    s.rotary.table_fp32 = table_fp32;
    if (s.rotary.dims == 0) s.rotary.dims = f.dim;
    const bool complex = f.rotary.step == 2;
    s.rotary.cos = table_fp32 ? static_cast<const void*>(cos.data()) : cos_t.data();
    s.rotary.sin = complex      ? static_cast<const void*>(cos.data() + 1)
                   : table_fp32 ? static_cast<const void*>(sin.data())
                                : sin_t.data();
    HeadExchange all;
    all.part[0] = s;
    all.count = 1;
    make_host_mover()->move(all, 0, nullptr);

    const T* x = in[0].element;
    for (std::int64_t row = 0; row < kRows; ++row)
        for (int head = 0; head < f.heads; ++head)
            for (int first = 0; first < f.dim; first += kVector) {
                const T* line = x + row * s.from_row;
                const T* own = line + head * f.dim;
                const kernels::LaneNorm n = kernels::lane_norm<T>(s, first);
                float rstd = 1;
                if (f.norm == NormKind::kPerHead)
                    rstd = rstd_of(own, f.dim, kHeadLanes, s.norm.eps);
                if (f.norm == NormKind::kFullWidth)
                    rstd = rstd_of(line, static_cast<int>(width), kRowLanes, s.norm.eps);
                kernels::Vector<T> mine = kernels::load(own + first);
                const kernels::Vector<T> other = kernels::load(own + n.partner);
                float c[kVector] = {}, sn[kVector] = {};
                if (n.rotates)
                    kernels::load_table<T>(c, sn, s.rotary,
                                           row * s.rotary.row_stride + head * s.rotary.head_stride,
                                           first);
                if (s.rotary.kind == RotaryKind::kHalf) {
                    kernels::transform<T, true>(s, n, first, head, rstd, mine, other, c, sn);
                } else {
                    kernels::transform<T, false>(s, n, first, head, rstd, mine, other, c, sn);
                }
                const std::size_t at = static_cast<std::size_t>(row) * width +
                                       static_cast<std::size_t>(head * f.dim + first);
                for (std::size_t j = 0; j < kVector; ++j)
                    ASSERT_EQ(mine.element[j].bits, out[at / 8].element[j].bits)
                        << f.name << " row " << row << " head " << head << " element "
                        << first + static_cast<int>(j);
            }
}

TEST(UlyssesLanes, HaveTheHostsBitsForEveryFamily) {
    for (const Family& f : families())
        for (bool weight_fp32 : {false, true}) {
            expect_the_hosts_bits<Bf16>(f, true, weight_fp32);
            expect_the_hosts_bits<Fp16>(f, true, weight_fp32);
            if (f.rotary.step == 1) expect_the_hosts_bits<Bf16>(f, false, weight_fp32);
        }
}

}  // namespace
}  // namespace xstage::ulysses
