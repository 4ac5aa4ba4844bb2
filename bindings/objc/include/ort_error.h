/** \file
 * How methods report errors.
 *
 * A method that can fail takes an NSError by reference last. It returns nil, NO or 0 on failure, and
 * sets the error. The domain of the error is ORTErrorDomain, its code one of ORTErrorCode, its localized
 * description says what was being done, on which argument, node or file, what was expected and what was
 * found. The reference may be NULL. If the method succeeds, the error is left unchanged.
 */
#import <Foundation/Foundation.h>

#import "ort_enums.h"

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/** The domain of the errors of this library, "onnxruntime". */
extern NSString *const ORTErrorDomain;

#ifdef __cplusplus
}
#endif

NS_ASSUME_NONNULL_END
