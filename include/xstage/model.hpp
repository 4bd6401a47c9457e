#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xstage/burst_gap.hpp"
#include "xstage/measurement.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

struct FitOptions {
    std::uint64_t seed = 1;  ///< of the bootstrap; the same seed gives the same intervals
    int resamples = 200;     ///< of the bootstrap
    bool held_out = true;    ///< cross-validate: needed for `held_out` and the choice of model
    int folds = 3;           ///< a third of the configurations is held out at a time
};

/// A rate above the line or a row that contradicts itself, in words; empty where all is well.
/// Such a row is an accounting error of whoever measured, never a result.
std::vector<std::string> accounting_errors(const Measurements& measurements);

/// Fits both models to the remote rows of a recording. What the rows cannot identify has no value
/// and a reason in `parameters`. Throws Error: kCheckFailed for an accounting error, kBadInput
/// where there is nothing to fit.
Profile fit(const Measurements& measurements, const FitOptions& options = {});

/// The paper's calibration of the three-parameter model for one path, from rows with the most
/// producers: R from zero-gap periodic bursts, T_iss0 from the long-gap plateau (else from local
/// rows), Q from the knee of the isolated sweep. Empty, with the reason, where rows are missing.
struct Calibration {
    std::optional<BurstGap> model;
    int producers = 0;
    Bytes at;  ///< bytes per producer that T_iss0 belongs to
    std::string reason;
};
Calibration calibrate(const std::vector<BurstRow>& rows, const std::string& path);

struct ScenarioBurst {
    Bytes bytes_per_producer;
    Nanoseconds gap;  ///< of computation after the burst
};

struct Scenario {
    std::string path = "st16";
    int producers = 132;
    int warps = 4;
    std::optional<GigaHertz> clock;  ///< absent: the recording's typical clock
    int destinations = 1;            ///< peers that share the bursts; the sender's link stays one
    GapFrom gap_from = GapFrom::kProducer;  ///< kProducer: as in the recording of the path
    std::vector<ScenarioBurst> bursts;
};

struct BurstPrediction {
    Nanoseconds issue;         ///< slowest producer
    Nanoseconds issue_median;  ///< median producer
    Nanoseconds stall;         ///< slowest producer's issue beyond the free one
    Nanoseconds drained;       ///< from the burst's first store until its last byte has left
    std::optional<Nanoseconds> visible;  ///< until the peer's answer that it has read all of it
    Bytes queued;                        ///< most bytes in flight when a producer had ended it
};

struct Interval {
    double low = 0, high = 0;
};

struct Prediction {
    std::vector<BurstPrediction> bursts;
    Nanoseconds total;         ///< first store to the slowest producer's last end of issue
    Nanoseconds total_median;  ///< the same for the median producer
    Bytes onset;               ///< largest isolated burst per producer that issues freely
    std::optional<Nanoseconds> recovery;  ///< gap from which the first burst may be repeated freely
    std::optional<Interval> issue;        ///< of the first burst's issue time, ns
};

/// Predicts a scenario on a profiled node. The rooms carry over from burst to burst. Throws Error
/// (kBadInput) naming the field for a scenario that makes no sense.
Prediction predict(const Scenario& scenario, const Profile& profile);

/// Bytes of all producers accepted and not yet drained, over the time since the first store;
/// straight lines lead from one point to the next. Same errors as predict.
std::vector<std::pair<Nanoseconds, Bytes>> occupancy(const Scenario& scenario,
                                                     const Profile& profile);

/// Largest burst per producer that every producer issues within 5% of the free time.
Bytes onset(const Profile& profile, const Scenario& load);

/// Smallest gap at which the second of two equal bursts is within 5% of its own long-gap plateau.
Nanoseconds recovery_gap(const Profile& profile, const Scenario& load, Bytes bytes_per_producer,
                         bool slowest = true);

}  // namespace xstage::model
