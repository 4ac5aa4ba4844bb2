/** \file
 * Running ONNX models forward, for Objective-C.
 *
 * This header imports all that is not about training.
 */
#import "ort_attributes.h"
#import "ort_enums.h"
#import "ort_error.h"

#import "ort_coreml_execution_provider.h"
#import "ort_custom_op_registration.h"
#import "ort_env.h"
#import "ort_execution_providers.h"
#import "ort_session.h"
#import "ort_value.h"
#import "ort_version.h"
#import "ort_xnnpack_execution_provider.h"
