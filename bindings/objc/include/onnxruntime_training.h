/** \file
 * Training of ONNX models on the device that runs them, for Objective-C.
 *
 * This header imports all the others.
 */
#import "onnxruntime.h"

#import "ort_checkpoint.h"
#import "ort_gradient_graph_builder.h"
#import "ort_metric.h"
#import "ort_training_session.h"
#import "ort_training_utils.h"
