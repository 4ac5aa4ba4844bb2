/** \file
 * Settings of the process.
 */
#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Sets the seed of all random numbers of the process.
 *
 * Sessions made afterwards draw the same numbers in every run with this seed. With the same number of threads
 * whole training runs are repeatable bit by bit.
 *
 * @param seed Any number.
 */
void ORTSetSeed(int64_t seed);

#ifdef __cplusplus
}
#endif

NS_ASSUME_NONNULL_END
