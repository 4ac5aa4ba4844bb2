/** \file
 * Process-wide settings.
 */
#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Sets the process-wide random seed.
 *
 * Sessions created afterwards draw the same random numbers in every run with this seed. With the same number of threads
 * whole training runs are reproducible bit for bit.
 *
 * @param seed Any number.
 */
void ORTSetSeed(int64_t seed);

#ifdef __cplusplus
}
#endif

NS_ASSUME_NONNULL_END
