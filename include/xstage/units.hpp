#pragma once

#include <compare>

namespace xstage {

/// A number with its unit: bytes^B * ns^T * cycles^C. Issue lives in SM cycles and drain in
/// nanoseconds of the link, so the two clocks are different dimensions: adding them does not
/// compile, and the only way from one to the other is through a clock rate in GHz.
template <int B, int T, int C>
class Quantity {
  public:
    constexpr Quantity() = default;
    constexpr explicit Quantity(double value) : value_(value) {}

    constexpr double value() const { return value_; }

    constexpr Quantity operator-() const { return Quantity{-value_}; }
    constexpr Quantity& operator+=(Quantity other) { return value_ += other.value_, *this; }
    constexpr Quantity& operator-=(Quantity other) { return value_ -= other.value_, *this; }
    constexpr Quantity& operator*=(double factor) { return value_ *= factor, *this; }

    friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
    friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
    friend constexpr Quantity operator*(Quantity a, double b) { return Quantity{a.value_ * b}; }
    friend constexpr Quantity operator*(double a, Quantity b) { return Quantity{a * b.value_}; }
    friend constexpr Quantity operator/(Quantity a, double b) { return Quantity{a.value_ / b}; }
    friend constexpr auto operator<=>(Quantity, Quantity) = default;

  private:
    double value_ = 0;
};

namespace detail {
template <int B, int T, int C>
constexpr auto with_unit(double value) {
    if constexpr (B == 0 && T == 0 && C == 0) {
        return value;
    } else {
        return Quantity<B, T, C>{value};
    }
}
}  // namespace detail

template <int B, int T, int C, int B2, int T2, int C2>
constexpr auto operator*(Quantity<B, T, C> a, Quantity<B2, T2, C2> b) {
    return detail::with_unit<B + B2, T + T2, C + C2>(a.value() * b.value());
}

template <int B, int T, int C, int B2, int T2, int C2>
constexpr auto operator/(Quantity<B, T, C> a, Quantity<B2, T2, C2> b) {
    return detail::with_unit<B - B2, T - T2, C - C2>(a.value() / b.value());
}

using Bytes = Quantity<1, 0, 0>;
using Nanoseconds = Quantity<0, 1, 0>;
using Cycles = Quantity<0, 0, 1>;
using GigaHertz = Quantity<0, -1, 1>;           ///< SM cycles per nanosecond
using BytesPerNanosecond = Quantity<1, -1, 0>;  ///< the same number as GB/s (1e9 bytes per second)
using BytesPerCycle = Quantity<1, 0, -1>;

/// x where it is positive, else zero: the [x]+ of the Burst-Gap formulas.
template <int B, int T, int C>
constexpr Quantity<B, T, C> positive_part(Quantity<B, T, C> x) {
    return x.value() > 0 ? x : Quantity<B, T, C>{};
}

namespace literals {
constexpr Bytes operator""_B(unsigned long long v) {
    return Bytes{static_cast<double>(v)};
}
constexpr Bytes operator""_KiB(unsigned long long v) {
    return Bytes{1024.0 * static_cast<double>(v)};
}
constexpr Bytes operator""_MiB(unsigned long long v) {
    return Bytes{1048576.0 * static_cast<double>(v)};
}
constexpr Nanoseconds operator""_ns(unsigned long long v) {
    return Nanoseconds{static_cast<double>(v)};
}
constexpr Cycles operator""_cyc(unsigned long long v) {
    return Cycles{static_cast<double>(v)};
}
}  // namespace literals

}  // namespace xstage
