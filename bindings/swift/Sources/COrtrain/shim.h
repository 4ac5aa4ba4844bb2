// The headers of the C library; pkg-config finds them.
#pragma once

#include <onnxruntime_training_c_api.h>
#include <ortrain_c_api.h>
