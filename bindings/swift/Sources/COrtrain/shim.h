// The headers of the C library: beside this one in a binary package, elsewhere where pkg-config finds them.
#pragma once

#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"
