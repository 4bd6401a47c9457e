#pragma once

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reference.hpp"
#include "xstage/attention.hpp"

namespace xstage::test {

inline bool have_hopper() {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

inline void require_cuda(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// Device memory between two guards; every byte of all three starts as 0xff, which is NaN in every
/// type used here.
class GuardedBuffer {
  public:
    explicit GuardedBuffer(std::size_t bytes) : bytes_(bytes) {
        require_cuda(cudaMalloc(&base_, bytes + 2 * kGuard));
        require_cuda(cudaMemset(base_, 0xff, bytes + 2 * kGuard));
    }
    ~GuardedBuffer() { cudaFree(base_); }
    GuardedBuffer(const GuardedBuffer&) = delete;
    GuardedBuffer& operator=(const GuardedBuffer&) = delete;

    void* data() const { return static_cast<char*>(base_) + kGuard; }
    void poison() const { require_cuda(cudaMemset(data(), 0xff, bytes_)); }

    template <class T>
    std::vector<T> read() const {
        std::vector<T> values(bytes_ / sizeof(T));
        require_cuda(cudaMemcpy(values.data(), data(), bytes_, cudaMemcpyDeviceToHost));
        return values;
    }
    template <class T>
    void write(const std::vector<T>& values) const {
        ASSERT_LE(values.size() * sizeof(T), bytes_);
        require_cuda(
            cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    bool guards_intact() const {
        std::vector<unsigned char> all(bytes_ + 2 * kGuard);
        require_cuda(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
        for (std::size_t i = 0; i < kGuard; ++i) {
            if (all[i] != 0xff || all[kGuard + bytes_ + i] != 0xff) return false;
        }
        return true;
    }

  private:
    static constexpr std::size_t kGuard = 64 * 1024;  // more than one tile writes
    std::size_t bytes_;
    void* base_ = nullptr;
};

inline std::uint16_t to_bits(float x, AttentionType type) {
    if (type == AttentionType::kBf16) {
        std::uint32_t u = std::bit_cast<std::uint32_t>(x);
        if (std::isnan(x)) return 0x7fc0;
        u += 0x7fff + ((u >> 16) & 1);  // to nearest, ties to even
        return static_cast<std::uint16_t>(u >> 16);
    }
    return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}

inline float from_bits(std::uint16_t bits, AttentionType type) {
    if (type == AttentionType::kBf16) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}

/// What a test varies. `fill(tensor, batch, row, head, column)` gives the elements of q, k, v (0,
/// 1, 2); by default they are normal with standard deviation `deviation`.
struct Shape {
    AttentionType type = AttentionType::kBf16;
    int head_dim = 128;
    std::int64_t batches = 1, heads = 1, kv_heads = 1, q_rows = 128, kv_rows = 128;
    bool causal = false;
    std::vector<std::int32_t> key_lengths;
    float deviation = 1;
    std::string instance;
    const sparse::BlockMask* mask = nullptr;
    std::function<float(int, std::int64_t, std::int64_t, std::int64_t, int)> fill;
};

/// Tensors of a shape, packed [batch][row][head][head_dim], and the plan's arguments for them.
class Problem {
  public:
    explicit Problem(const Shape& shape)
        : shape_(shape),
          q_(elements(shape.q_rows, shape.heads) * 2),
          k_(elements(shape.kv_rows, shape.kv_heads) * 2),
          v_(elements(shape.kv_rows, shape.kv_heads) * 2),
          out_(elements(shape.q_rows, shape.heads) * 2),
          lse_(shape.batches * shape.heads * shape.q_rows * sizeof(float)),
          lengths_(std::max<std::size_t>(1, shape.key_lengths.size()) * 4) {
        fill(0, q_, shape.q_rows, shape.heads);
        fill(1, k_, shape.kv_rows, shape.kv_heads);
        fill(2, v_, shape.kv_rows, shape.kv_heads);
        if (!shape.key_lengths.empty()) lengths_.write(shape.key_lengths);
    }

    AttentionArguments arguments() const {
        AttentionArguments a;
        a.type = shape_.type;
        a.head_dim = shape_.head_dim;
        a.batches = shape_.batches;
        a.heads = shape_.heads;
        a.kv_heads = shape_.kv_heads;
        a.q_rows = shape_.q_rows;
        a.kv_rows = shape_.kv_rows;
        a.q = view(q_, shape_.q_rows, shape_.heads);
        a.k = view(k_, shape_.kv_rows, shape_.kv_heads);
        a.v = view(v_, shape_.kv_rows, shape_.kv_heads);
        a.out = {{view(out_, shape_.q_rows, shape_.heads), shape_.q_rows}};
        a.lse = static_cast<float*>(lse_.data());
        a.causal = shape_.causal;
        a.instance = shape_.instance;
        a.mask = shape_.mask;
        if (!shape_.key_lengths.empty()) {
            a.key_lengths = static_cast<const std::int32_t*>(lengths_.data());
        }
        return a;
    }

    void run(const AttentionArguments& a) const {
        out_.poison();
        lse_.poison();
        AttentionPlan(a).launch(nullptr);
        require_cuda(cudaDeviceSynchronize());
    }

    std::vector<std::uint16_t> out_bits() const { return out_.read<std::uint16_t>(); }
    std::vector<float> lse() const { return lse_.read<float>(); }
    std::vector<float> out() const {
        std::vector<float> values;
        for (std::uint16_t bits : out_bits()) values.push_back(from_bits(bits, shape_.type));
        return values;
    }
    bool guards_intact() const {
        return q_.guards_intact() && k_.guards_intact() && v_.guards_intact() &&
               out_.guards_intact() && lse_.guards_intact();
    }
    const GuardedBuffer& out_buffer() const { return out_; }

    struct Reference {
        std::vector<double> out, lse;
    };
    Reference reference() const {
        GuardedBuffer out(elements(shape_.q_rows, shape_.heads) * 8);
        GuardedBuffer lse(shape_.batches * shape_.heads * shape_.q_rows * 8);
        reference_attention(arguments(), static_cast<double*>(out.data()),
                            static_cast<double*>(lse.data()));
        return {out.read<double>(), lse.read<double>()};
    }

  private:
    std::size_t elements(std::int64_t rows, std::int64_t heads) const {
        return static_cast<std::size_t>(shape_.batches * rows * heads * shape_.head_dim);
    }
    AttentionView view(const GuardedBuffer& buffer, std::int64_t rows, std::int64_t heads) const {
        const std::int64_t row = heads * shape_.head_dim;
        return {buffer.data(), rows * row, row, shape_.head_dim};
    }
    void fill(int tensor, const GuardedBuffer& buffer, std::int64_t rows, std::int64_t heads) {
        std::mt19937 random(static_cast<unsigned>(17 + tensor + 31 * rows));
        std::normal_distribution<float> normal(0, shape_.deviation);
        std::vector<std::uint16_t> bits;
        bits.reserve(elements(rows, heads));
        for (std::int64_t b = 0; b < shape_.batches; ++b) {
            for (std::int64_t r = 0; r < rows; ++r) {
                // Keys behind a sample's end are the caller's and may be anything.
                const bool behind = tensor > 0 && !shape_.key_lengths.empty() &&
                                    r >= shape_.key_lengths[static_cast<std::size_t>(b)];
                for (std::int64_t h = 0; h < heads; ++h) {
                    for (int c = 0; c < shape_.head_dim; ++c) {
                        float x = shape_.fill ? shape_.fill(tensor, b, r, h, c) : normal(random);
                        if (behind) x = std::numeric_limits<float>::quiet_NaN();
                        bits.push_back(to_bits(x, shape_.type));
                    }
                }
            }
        }
        buffer.write(bits);
    }

    Shape shape_;
    GuardedBuffer q_, k_, v_, out_, lse_, lengths_;
};

/// Norm of the difference over norm of the reference; infinite if a NaN is only in one of them.
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = static_cast<double>(got[i]) - want[i];
        if (std::isnan(d)) return std::numeric_limits<double>::infinity();
        difference += d * d;
        norm += want[i] * want[i];
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// Two roundings to the type, of the weights and of the output, each of at most half a unit.
inline double tolerance(AttentionType type) {
    return 2 * std::ldexp(1.0, type == AttentionType::kBf16 ? -9 : -12);
}

/// What an instance's name says about it.
inline Shape shape_of_instance(const std::string& name) {
    Shape s;
    s.instance = name;
    s.type = name.starts_with("bf16") ? AttentionType::kBf16 : AttentionType::kFp16;
    s.head_dim = name.find("_d64_") != std::string::npos ? 64 : 128;
    s.causal = name.find("causal") != std::string::npos;
    return s;
}

/// Result and LSE against the float64 reference, with the shape's mask if it has one.
inline void expect_agrees(const Shape& shape) {
    const Problem problem(shape);
    problem.run(problem.arguments());
    const Problem::Reference want = problem.reference();
    EXPECT_LT(relative_error(problem.out(), want.out), tolerance(shape.type));
    const std::vector<float> lse = problem.lse();
    for (std::size_t i = 0; i < lse.size(); ++i) {
        if (std::isinf(want.lse[i])) {
            ASSERT_EQ(lse[i], -std::numeric_limits<float>::infinity()) << "row " << i;
        } else {
            // Scores are sums of float products: a few float roundings of their size.
            ASSERT_NEAR(lse[i], want.lse[i], 1e-5 + 2e-6 * std::abs(want.lse[i])) << "row " << i;
        }
    }
    EXPECT_TRUE(problem.guards_intact());
}

}  // namespace xstage::test
