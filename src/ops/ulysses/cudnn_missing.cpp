#include "xstage/error.hpp"
#include "xstage/ulysses/cudnn.hpp"

namespace xstage::ulysses {

std::string cudnn_missing() {
    return "cuDNN attention is not part of this build: it needs CUDA and the cudnn-frontend "
           "headers "
           "(./dev cudnn fetches them)";
}

Plug cudnn_plug() {
    throw Error(ErrorKind::kUnsupported, cudnn_missing());
}

}  // namespace xstage::ulysses
