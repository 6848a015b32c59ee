// SPDX-License-Identifier: Apache-2.0
// The two halves of a call.
#pragma once

namespace jax_convbatch {

// kPrepare does all but the launch, so that kLaunch may be captured.
enum class Stage { kPrepare, kLaunch };

}  // namespace jax_convbatch
