#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include "model/fluid.hpp"

namespace xstage::model {

/// Bursts that a class has issued and not drained, oldest first, for all classes in one store.
class PendingBursts {
  public:
    struct Burst {
        double target;  ///< bytes drained by the producer since the start when it has left
        std::size_t burst;
        std::size_t next;
    };

    explicit PendingBursts(std::size_t classes) {
        std::fill_n(oldest_.begin(), classes, kNone);
        store_.reserve(4 * classes);
    }
    bool empty(std::size_t k) const { return oldest_[k] == kNone; }
    const Burst& oldest(std::size_t k) const { return store_[oldest_[k]]; }
    double target(std::size_t k) const {
        return empty(k) ? std::numeric_limits<double>::infinity() : oldest(k).target;
    }
    void push(std::size_t k, double target, std::size_t burst) {
        std::size_t place = unused_;
        if (place == kNone) {
            place = store_.size();
            store_.emplace_back();
        } else {
            unused_ = store_[place].next;
        }
        store_[place] = {target, burst, kNone};
        (empty(k) ? oldest_[k] : store_[newest_[k]].next) = place;
        newest_[k] = place;
    }
    void pop(std::size_t k) {
        const std::size_t done = oldest_[k];
        oldest_[k] = store_[done].next;
        store_[done].next = unused_, unused_ = done;
    }

  private:
    static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

    std::vector<Burst> store_;
    std::array<std::size_t, kMostClasses> oldest_, newest_;
    std::size_t unused_ = kNone;
};

}  // namespace xstage::model
