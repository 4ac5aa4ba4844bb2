// The headers of the C library. In a binary package they are beside this header; otherwise pkg-config finds
// them.
#pragma once

#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"
