// The headers of the C library; pkg-config says where they lie.
#pragma once

#include <onnxruntime_training_c_api.h>
#include <ortrain_c_api.h>
