#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/fluid.hpp"

namespace xstage::model {

/// How one class's issuers got through one burst.
struct IssueTime {
    double slowest = 0;  ///< cycles
    double lag = 0;      ///< of a producer's last issuer behind the first
    double free = 0;     ///< of an issuer that met no backpressure
    double at_once = 0;  ///< part of the bytes accepted with none
    double slow = 0;     ///< more than `free` of the last one that found room
    double in_turn = 0;  ///< 0: issuers began together, 1: one by one
};

/// Orders the issuers of all classes by issue time. A burst is open from the first class that ends
/// it to the last, which is why its times wait here.
class IssueOrder {
  public:
    IssueOrder(const FluidModel& model, std::size_t bursts, FluidDetail detail);

    /// Whether anyone asks for the times of this burst.
    bool asked(std::size_t burst) const { return every_ || burst == 0 || burst + 1 == bursts_; }
    /// A class has ended `burst`, which is asked for; with the last one its result is written.
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
    void add(double low, double high, double part) { segments_[segment_++] = {low, high, part}; }
    double quantile(double fraction) const;
    std::size_t slot(std::size_t burst);
    void widen();

    std::size_t classes_, groups_ = 0, bursts_;
    bool every_;
    double tail_;
    std::array<double, kMostClasses> part_;              // of all producers, by class
    std::array<std::size_t, kMostClasses> first_, end_;  // classes of each group
    // Open bursts lie in a ring: the times of burst b in slot b modulo its size.
    std::vector<std::uint32_t> missing_;  // classes that have not ended it
    std::vector<float> times_;            // six numbers for each class
    std::size_t first_open_ = 0, opened_ = 0;
    std::array<Segment, 2 * kMostClasses> segments_;
    std::size_t segment_ = 0;
};

}  // namespace xstage::model
