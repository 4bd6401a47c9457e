#pragma once

#include <Eigen/Dense>
#include <vector>

#include "model/cases.hpp"
#include "model/parameters.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// Robust logarithmic errors are least squares: errors of up to 15% count in full, and larger ones
/// ever less, so that a row that the model does not describe does not bend the rest.
/// Levenberg-Marquardt from the profile's own values; moves `parameters` only. Returns their
/// transforms. The result does not depend on the number of threads.
Eigen::VectorXd solve(Profile& profile, const std::vector<Parameter>& parameters,
                      const std::vector<Case>& cases, int threads, int max_iterations = 12);

struct Linearised {
    Eigen::VectorXd residual;
    Eigen::MatrixXd jacobian;          ///< of the residuals
    std::vector<std::size_t> case_of;  ///< case of each residual
};

/// The errors around a solution.
Linearised linearise(const Profile& profile, const Eigen::VectorXd& free,
                     const std::vector<Parameter>& parameters, const std::vector<Case>& cases,
                     int threads);

}  // namespace xstage::model
