/** \file
 * The environment, which determines which log messages are written.
 */
#import <Foundation/Foundation.h>

#import "ort_attributes.h"
#import "ort_enums.h"

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The version of the library: that of onnxruntime whose interface it has, then + and its own, as in
 * 1.30.0+ortrain.0.1.0.
 */
NSString *ORTVersion(void);

#ifdef __cplusplus
}
#endif

/**
 * The environment. A program creates one and passes it to its sessions, which do not need it afterwards.
 * Messages go to standard error.
 */
@interface ORTEnv : NSObject {
 @private
  struct OrtEnv *_handle;
}

- (instancetype)init ORT_UNAVAILABLE;

/**
 * Creates an environment.
 *
 * @param loggingLevel The minimum severity that is logged.
 * @param error Set when it fails. May be NULL.
 * @return The environment, or nil on failure.
 *
 * Errors: ORTErrorCodeInvalidArgument when there is no such severity.
 */
- (nullable instancetype)initWithLoggingLevel:(ORTLoggingLevel)loggingLevel
                                        error:(NSError *_Nullable *_Nullable)error NS_DESIGNATED_INITIALIZER;

@end

NS_ASSUME_NONNULL_END
