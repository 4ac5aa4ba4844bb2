// The tables of C calls that the classes use.
#pragma once

#import <Foundation/Foundation.h>

#include "onnxruntime_c_api.h"
#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

#define ORT_HIDDEN __attribute__((visibility("hidden")))

/** The table of general calls. Raises NSInternalInconsistencyException when the C library is older than its
 * headers here. */
ORT_HIDDEN const OrtApi* ORTGeneralTable(void);

/** The training calls. */
ORT_HIDDEN const OrtTrainingApi* ORTTrainingTable(void);

/** The calls that onnxruntime's tables lack. */
ORT_HIDDEN const OrtrainApi* ORTExtensionTable(void);

/** The CPU allocator. */
ORT_HIDDEN OrtAllocator* ORTAllocator(void);
