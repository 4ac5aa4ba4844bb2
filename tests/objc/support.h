// Shared by the tests: recorded runs, a separate folder for each test, and checks of errors.
#pragma once

#import <XCTest/XCTest.h>

#import "onnxruntime_training.h"

#if defined(__has_feature)
#if __has_feature(objc_arc)
#define ORT_TEST_ARC 1
#endif
#endif
#ifdef ORT_TEST_ARC
#define ORT_TEST_AUTORELEASED(object) (object)
#define ORT_TEST_RETAINED(object) (object)
#define ORT_TEST_RELEASE(object) ((void)(object))
#else
#define ORT_TEST_AUTORELEASED(object) [(object) autorelease]
#define ORT_TEST_RETAINED(object) [(object) retain]
#define ORT_TEST_RELEASE(object) [(object) release]
#endif

@interface ORTTestCase : XCTestCase {
 @private
  NSString *_scratch;
  ORTEnv *_env;
}

/** An environment that logs only fatal messages. */
- (ORTEnv *)env;

/** A path in a folder that is removed after the test. */
- (NSString *)scratch:(NSString *)name;

/** A file of a recorded run. */
- (NSString *)file:(NSString *)name of:(NSString *)run;

/** The recorded values of a run. */
- (NSDictionary *)recordOf:(NSString *)run;

/** An array of a recorded run as a tensor. */
- (ORTValue *)tensor:(NSString *)name of:(NSString *)run;

/** The inputs of a step of a recorded run. */
- (NSArray<ORTValue *> *)batch:(NSUInteger)step of:(NSString *)run;

/** The state that a recorded run began with. */
- (ORTCheckpoint *)stateOf:(NSString *)run;

/** A session with all models of a recorded run, over a given state or a new one. */
- (ORTTrainingSession *)sessionOf:(NSString *)run;
- (ORTTrainingSession *)sessionOf:(NSString *)run over:(ORTCheckpoint *)state;

/** A tensor of zeros. */
- (ORTValue *)zeros:(ORTTensorElementDataType)type shape:(NSArray<NSNumber *> *)shape;

/** The float of a scalar. */
- (float)scalar:(ORTValue *)value;

/** Options with their defaults. */
- (ORTSessionOptions *)options;

@end

/** Fails the test unless the error has the code, is of this library, and says each of the words. */
#define XCTAssertSays(found, wanted, ...) \
  [self check:(found) code:(wanted)words:@[ __VA_ARGS__ ] file:__FILE__ line:__LINE__]

@interface ORTTestCase (Errors)
- (void)check:(NSError *)error
         code:(ORTErrorCode)code
        words:(NSArray<NSString *> *)words
         file:(const char *)file
         line:(int)line;
@end
