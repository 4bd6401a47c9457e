#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "model/fluid.hpp"

namespace xstage::model {

/// How long a class took for one burst, cycles.
struct IssueTime {
    double slowest = 0;  ///< last issuer of a producer
    double lag = 0;      ///< of the last issuer behind the first
    double free = 0;     ///< of an issuer that met no backpressure
    double at_once = 0;  ///< part of the bytes accepted with none
    double slow = 0;     ///< more than `free` of the last one that found room
    double in_turn = 0;  ///< 0: issuers began together, 1: one by one
};

/// Orders the issuers of all classes by issue time. A burst is open from the first class that ends
/// it to the last, which is why its times wait here.
class IssueOrder {
  public:
    explicit IssueOrder(const FluidModel& model);

    /// A class has ended `burst`; with the last one the burst's result is written.
    void ended(std::size_t burst, std::size_t k, const IssueTime& time, FluidResult& result);
    /// Median over producers of one value per class.
    double median(std::span<const double> values);

  private:
    struct Segment {
        double low, high, part;
    };
    double slowest(const float* times) const;
    double median(const float* times);
    void add_group(std::size_t group, const float* times);
    double quantile(double fraction);

    std::size_t classes_;
    double tail_;
    std::vector<double> part_;              // of all producers, by class
    std::vector<std::size_t> first_, end_;  // classes of each group
    std::deque<std::size_t> missing_;       // classes that have not ended it, by open burst
    std::deque<float> open_;                // six numbers for each class of each open burst
    std::size_t first_open_ = 0;
    std::vector<Segment> segments_;
};

}  // namespace xstage::model
