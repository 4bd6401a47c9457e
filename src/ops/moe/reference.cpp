#include "ops/moe/reference.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <future>
#include <limits>

namespace xstage::moe {

float from_bf16(std::uint16_t value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

std::uint16_t to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_e4m3(std::uint8_t value) {
    static const std::array<float, 256> table = [] {
        std::array<float, 256> t{};
        for (int i = 0; i < 256; ++i) {
            const int exponent = i >> 3 & 15;
            const int fraction = i & 7;
            float magnitude = exponent == 0
                                  ? std::ldexp(static_cast<float>(fraction), -9)
                                  : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
            if ((i & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
            t[static_cast<std::size_t>(i)] = (i & 0x80) != 0 ? -magnitude : magnitude;
        }
        return t;
    }();
    return table[value];
}

std::uint8_t to_e4m3(float value) {
    const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return 0x7f;
    const float magnitude = std::min(std::fabs(value), 448.0F);
    if (magnitude == 0) return sign;
    // Eighths of the binade, or of the smallest normal one below it; the mode is ties to even.
    const int exponent = std::max(std::ilogb(magnitude), -6);
    const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    // 8 eighths more is the next code's exponent, so the carry needs no case of its own.
    return static_cast<std::uint8_t>(sign | ((exponent + 6) * 8 + eighths));
}

float scale_of(float most) {
    if (most == 0) return std::ldexp(1.0F, -126);
    int exponent = 0;
    const float fraction = std::frexp(most, &exponent);  // in [0.5, 1)
    // 448 = 0.875 * 2^9
    exponent += fraction > 0.875F ? -8 : -9;
    return std::ldexp(1.0F, std::clamp(exponent, -126, 126));
}

namespace {

float element(const Problem& p, const void* data, std::int64_t index) {
    return p.type == Type::kFp8 ? from_e4m3(static_cast<const std::uint8_t*>(data)[index])
                                : from_bf16(static_cast<const std::uint16_t*>(data)[index]);
}

/// What a Hopper tensor core does to a sum of products: in steps of 32 bytes of depth, the products
/// and the sum so far are cut to a number of bits below the largest exponent among them, added, and
/// the total is cut again. The numbers of bits were found by experiment (bench/notes/moe.md).
struct TensorCore {
    int depth;  ///< products of one step
    int bits;   ///< kept below the largest exponent
    int total;  ///< fraction bits of the total

    explicit TensorCore(Type type)
        : depth(type == Type::kFp8 ? 32 : 16),
          bits(type == Type::kFp8 ? 13 : 25),
          total(type == Type::kFp8 ? 13 : 23) {}
};

/// A row of numbers and their exponents, that of zero being very small.
struct Vector {
    std::vector<float> values;
    std::vector<std::int16_t> exponents;

    Vector(std::vector<float> v, Type type) : values(std::move(v)) {
        const int least = type == Type::kFp8 ? -6 : -126;  // of a normal number
        for (const float value : values)
            exponents.push_back(
                static_cast<std::int16_t>(value == 0 ? kZero : std::max(std::ilogb(value), least)));
    }
    static constexpr int kZero = -1000;
};

double cut(double value, int exponent) {
    return std::ldexp(std::trunc(std::ldexp(value, -exponent)), exponent);
}

/// Adds one step's products to `sum`.
float tensor_core_step(const TensorCore& core, const float* x, const std::int16_t* x_exponent,
                       const float* w, const std::int16_t* w_exponent, float sum) {
    int most = sum == 0 ? 2 * Vector::kZero : std::ilogb(sum);
    double plain = sum;
    for (int k = 0; k < core.depth; ++k) {
        most = std::max(most, x_exponent[k] + w_exponent[k]);
        plain += double{x[k]} * double{w[k]};
    }
    if (most < Vector::kZero / 2) return 0;  // every product is zero
    if (!std::isfinite(plain)) return static_cast<float>(plain);
    const double unit = std::ldexp(1.0, core.bits - most);
    auto total = static_cast<std::int64_t>(double{sum} * unit);  // towards zero
    for (int k = 0; k < core.depth; ++k)
        total += static_cast<std::int64_t>(double{x[k]} * double{w[k]} * unit);
    const double exact = static_cast<double>(total) / unit;
    if (exact == 0) return 0;
    return static_cast<float>(cut(exact, std::ilogb(exact) - core.total));
}

/// Rows of a matrix and the scales of its blocks, of one expert.
struct Matrix {
    Vector values;
    const float* scales;  ///< null: none
    int columns;
    TensorCore core;

    Matrix(const Problem& p, const void* data, const float* s, int expert, int rows, int width)
        : values(elements(p, data, expert, std::int64_t{rows} * width), p.type),
          scales(p.type == Type::kFp8
                     ? s + std::int64_t{expert} * (rows / kScaleGroup) * (width / kScaleGroup)
                     : nullptr),
          columns(width),
          core(p.type) {}

    float scale(int row, int group) const {
        return scales == nullptr ? 1.0F
                                 : scales[row / kScaleGroup * (columns / kScaleGroup) + group];
    }

    /// x times row `row`, exactly but for float64's roundings.
    template <class T>
    double times_exact(int row, const std::vector<T>& x, const float* x_scale) const {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
        double sum = 0;
        for (int g = 0; g < columns / kScaleGroup; ++g) {
            double part = 0;
            for (int k = g * kScaleGroup; k < (g + 1) * kScaleGroup; ++k)
                part += double{x[static_cast<std::size_t>(k)]} *
                        double{values.values[at + static_cast<std::size_t>(k)]};
            sum += part * double{scale(row, g)} * (x_scale == nullptr ? 1.0 : double{x_scale[g]});
        }
        return sum;
    }

    /// x times row `row` as the kernel's math threads and tensor cores do it. Without scales there
    /// is one sum over all of it; with them groups of 128 products, each scaled by the product of
    /// both scales and added in float.
    float times(int row, const Vector& x, const float* x_scale) const {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
        float sum = 0;
        float part = 0;
        for (int k = 0; k < columns; k += core.depth) {
            const auto i = static_cast<std::size_t>(k);
            part = tensor_core_step(core, &x.values[i], &x.exponents[i], &values.values[at + i],
                                    &values.exponents[at + i], part);
            if (scales == nullptr || (k + core.depth) % kScaleGroup != 0) continue;
            const int g = k / kScaleGroup;
            sum = std::fma(part, x_scale[g] * scale(row, g), sum);
            part = 0;
        }
        return scales == nullptr ? part : sum;
    }

  private:
    static std::vector<float> elements(const Problem& p, const void* data, std::int64_t expert,
                                       std::int64_t size) {
        std::vector<float> all(static_cast<std::size_t>(size));
        for (std::int64_t i = 0; i < size; ++i)
            all[static_cast<std::size_t>(i)] = element(p, data, expert * size + i);
        return all;
    }
};

double swiglu(double gate, double up, double clamp) {
    gate = gate > clamp ? clamp : gate;
    up = up > clamp ? clamp : (up < -clamp ? -clamp : up);
    return gate / (1 + std::exp(-gate)) * up;
}

/// Linear-1's output as Linear-2 reads it.
struct Activations {
    std::vector<float> values;
    std::vector<float> scales;

    Activations(const Problem& p, const std::vector<double>& act) : values(act.size()) {
        for (std::size_t i = 0; i < act.size(); ++i) values[i] = static_cast<float>(act[i]);
        if (p.type == Type::kBf16) {
            for (float& v : values) v = from_bf16(to_bf16(v));
            return;
        }
        for (std::size_t g = 0; g < values.size(); g += kScaleGroup) {
            float most = 0;
            for (std::size_t i = g; i < g + kScaleGroup; ++i)
                most = std::fmax(most, std::fabs(values[i]));
            const float scale = scale_of(most);
            scales.push_back(scale);
            for (std::size_t i = g; i < g + kScaleGroup; ++i)
                values[i] = from_e4m3(to_e4m3(values[i] / scale));
        }
    }
};

}  // namespace

void run_expert(const Problem& p, const Weights& w, int expert, Rounding rounding,
                std::span<const ExpertRow> rows) {
    if (rows.empty()) return;
    const Matrix w1(p, w.w1, w.s1, expert, 2 * p.intermediate, p.hidden);
    const Matrix w2(p, w.w2, w.s2, expert, p.hidden, p.intermediate);
    const bool scaled = p.type == Type::kFp8;
    const double clamp = p.clamp > 0 ? p.clamp : std::numeric_limits<double>::infinity();
    std::vector<float> read(static_cast<std::size_t>(p.hidden));
    std::vector<double> act(static_cast<std::size_t>(p.intermediate));
    const bool kernel = rounding == Rounding::kKernel;
    for (const ExpertRow& row : rows) {
        for (int k = 0; k < p.hidden; ++k) read[static_cast<std::size_t>(k)] = element(p, row.x, k);
        const Vector x(read, p.type);
        const auto first = [&](int j) {
            return kernel ? double{w1.times(j, x, row.x_scale)}
                          : w1.times_exact(j, x.values, scaled ? row.x_scale : nullptr);
        };
        for (int j = 0; j < p.intermediate; ++j)
            act[static_cast<std::size_t>(j)] =
                swiglu(first(j), first(p.intermediate + j), clamp) * double{row.weight};
        if (!kernel) {
            for (int n = 0; n < p.hidden; ++n)
                row.y[static_cast<std::size_t>(n)] = w2.times_exact(n, act, nullptr);
            continue;
        }
        const Activations rounded(p, act);
        const Vector second(rounded.values, p.type);
        for (int n = 0; n < p.hidden; ++n)
            row.y[static_cast<std::size_t>(n)] =
                from_bf16(to_bf16(w2.times(n, second, rounded.scales.data())));
    }
}

std::vector<std::vector<double>> reference_layer(const Problem& p, std::span<const Weights> weights,
                                                 std::span<const Input> inputs, Rounding rounding) {
    const auto width = static_cast<std::size_t>(p.hidden);
    const auto top_k = static_cast<std::size_t>(p.top_k);
    const auto slots = static_cast<std::size_t>(p.slots());
    std::vector<std::vector<double>> routed, y;
    // Of every rank the experts it holds, in the order of its weights.
    const auto held = static_cast<std::size_t>(p.held_experts());
    const auto local = static_cast<std::size_t>(p.local_experts());
    std::vector<std::vector<ExpertRow>> rows(static_cast<std::size_t>(p.ranks) * held);
    for (const Input& in : inputs) {
        const auto tokens = static_cast<std::size_t>(in.tokens);
        y.emplace_back(tokens * width);
        std::vector<double>& slot_rows = routed.emplace_back(tokens * slots * width);
        const std::size_t rank = y.size() - 1;
        for (std::size_t route = 0; route < tokens * slots; ++route) {
            const std::size_t t = route / slots;
            const bool shared = route % slots == top_k;
            const std::size_t at = t * top_k + route % slots;
            const std::int32_t e = shared ? 0 : in.experts[at];
            if (e < 0 || e >= p.experts) continue;
            const auto expert = static_cast<std::size_t>(e);
            const std::size_t index =
                shared ? rank * held : expert / local * held + expert % local + (held - local);
            const auto* x = static_cast<const std::byte*>(in.x) +
                            t * width * static_cast<std::size_t>(p.element_bytes());
            const float* scale =
                p.type == Type::kFp8 ? in.x_scale + t * (width / kScaleGroup) : nullptr;
            rows[index].push_back({x, scale, shared ? 1.0F : in.weights[at],
                                   std::span(&slot_rows[route * width], width)});
        }
    }
    std::vector<std::future<void>> running;
    for (std::size_t i = 0; i < rows.size(); ++i)
        running.push_back(std::async(std::launch::async, [&, i] {
            run_expert(p, weights[i / held], static_cast<int>(i % held), rounding, rows[i]);
        }));
    for (std::future<void>& run : running) run.get();
    for (std::size_t r = 0; r < inputs.size(); ++r)
        for (std::size_t i = 0; i < y[r].size(); ++i) {
            const std::size_t t = i / width;
            double exact = 0;
            float sum = 0;
            for (std::size_t s = 0; s < slots; ++s) {
                const std::int32_t e = s == top_k ? 0 : inputs[r].experts[t * top_k + s];
                if (e >= p.experts) exact = sum = std::numeric_limits<float>::quiet_NaN();
                if (e < 0 || e >= p.experts) continue;
                const double value = routed[r][(t * slots + s) * width + i % width];
                exact += value;
                sum += static_cast<float>(value);
            }
            y[r][i] = rounding == Rounding::kNone ? exact : double{from_bf16(to_bf16(sum))};
        }
    return y;
}

}  // namespace xstage::moe
