/** \file
 * Training of ONNX models on the device that runs them, for Objective-C.
 *
 * This header imports all the others.
 */
#import "ort_attributes.h"
#import "ort_enums.h"
#import "ort_error.h"

#import "ort_env.h"
#import "ort_session.h"
#import "ort_value.h"

#import "ort_checkpoint.h"
#import "ort_gradient_graph_builder.h"
#import "ort_training_session.h"
#import "ort_training_utils.h"
