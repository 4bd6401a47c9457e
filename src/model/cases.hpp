#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "model/producers.hpp"
#include "xstage/measurement.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// What a row records about issue, in SM cycles.
enum Observable { kFirst, kFirstSlowest, kLast, kLastSlowest, kTotal, kTotalSlowest, kObservables };
using Observed = std::array<double, kObservables>;

/// One remote row of a recording, ready for the fluid model.
struct Case {
    std::size_t path = 0;  ///< index into Profile::paths
    Load load;
    Bytes bytes;
    int bursts = 1;
    Cycles gap;
    BurstMode mode = BurstMode::kIsolated;
    Observed observed{};  ///< 0 where the row does not say
    Observed weight{};    ///< of the logarithmic error in the fit
};

/// The remote rows as cases; paths are numbered in `paths` in order of appearance.
/// Rows that are marked, merged before the link or with work beside are left out.
std::vector<Case> make_cases(const Measurements& measurements, GigaHertz typical_clock,
                             std::vector<std::string>& paths);

/// The cases that the fit looks at: of those that are dear to simulate only every second or third,
/// which then counts for as many.
std::vector<Case> thin_out(const std::vector<Case>& cases);

/// What a profile, which must outlive this, predicts for cases, in the same numbers.
class Simulator {
  public:
    explicit Simulator(const Profile& profile)
        : profile_(profile), models_(profile.network, profile.topology) {}
    Observed operator()(const Case& c);
    /// Whether another profile, of the same overheads, is bound to predict the same.
    bool agrees(Simulator& other, const Case& c);

  private:
    void prepare(const Case& c);

    const Profile& profile_;
    FluidModels models_;
    const FluidModel* model_ = nullptr;  // of the case prepared last, and its first and next bursts
    FluidBurst first_, next_;
    std::vector<FluidBurst> bursts_;
};

/// The same for one case.
Observed simulate(const Profile& profile, const Case& c);

/// Median of the clocks that the rows carry; 1 GHz (cycles are nanoseconds) where none does.
GigaHertz typical_clock(const Measurements& measurements);

}  // namespace xstage::model
