#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "model/fluid.hpp"

namespace xstage::model {

/// How long the classes took for one burst, cycles.
struct IssueTimes {
    std::array<double, kMostClasses> slowest;  ///< last issuer of a producer
    std::array<double, kMostClasses> lag;      ///< of the last issuer behind the first
    std::array<double, kMostClasses> free;     ///< of an issuer that met no backpressure
    std::array<double, kMostClasses> at_once;  ///< part of the bytes accepted with none
    std::array<double, kMostClasses> in_turn;  ///< 0: issuers began together, 1: one by one
    std::size_t missing;                       ///< classes that have not ended it
};

/// Orders the issuers of all classes by issue time. Bursts are open from the first class that ends
/// them to the last, which is why their times wait here.
class IssueOrder {
  public:
    explicit IssueOrder(const FluidModel& model);

    IssueTimes& times(std::size_t burst);
    /// One more class has ended `burst`; with the last one the burst's result is written.
    void done(std::size_t burst, FluidResult& result);
    /// Median over producers of one value per class.
    double median(std::span<const double> values);

  private:
    struct Segment {
        double low, high, part;
    };
    void add_segments(const IssueTimes& times);
    double quantile(double fraction);

    std::vector<double> part_;             // of all producers, by class
    std::vector<std::size_t> first_, end_;  // classes of each group
    std::deque<IssueTimes> open_;
    std::size_t first_open_ = 0;
    std::vector<Segment> segments_;
};

}  // namespace xstage::model
