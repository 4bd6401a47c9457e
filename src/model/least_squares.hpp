#pragma once

#include <Eigen/Dense>
#include <vector>

#include "model/cases.hpp"
#include "model/parameters.hpp"
#include "xstage/profile.hpp"

namespace xstage::model {

/// Robust logarithmic errors of `profile` on the cases: errors of up to 15% count in full, and
/// larger ones ever less, so that a row that the model does not describe does not bend the rest.
Eigen::VectorXd residuals(const Profile& profile, const std::vector<Case>& cases);

struct Solution {
    Eigen::VectorXd free;      ///< the parameters' transforms
    Eigen::MatrixXd jacobian;  ///< of the residuals at the solution
    Eigen::VectorXd residual;
    std::vector<std::size_t> case_of;  ///< case of each residual
    double cost = 0;                   ///< half the sum of squares
};

/// Levenberg-Marquardt from the profile's own values; moves `parameters` only.
Solution solve(Profile& profile, const std::vector<Parameter>& parameters,
               const std::vector<Case>& cases, int max_iterations = 12);

}  // namespace xstage::model
