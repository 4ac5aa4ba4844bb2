/** \file
 * The version of the library.
 */
#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The version of the library: that of onnxruntime whose interface it has, then + and its own, as in
 * 1.32.0+ortrain.0.1.0.
 */
NSString *ORTVersion(void);

#ifdef __cplusplus
}
#endif

NS_ASSUME_NONNULL_END
