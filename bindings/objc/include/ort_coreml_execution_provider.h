/** \file
 * The execution provider CoreML, under the header that programs for onnxruntime import.
 */
#import "ort_execution_providers.h"
