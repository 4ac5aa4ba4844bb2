// The part of XCTest that the tests here use, for systems without it. They run under Apple's XCTest as they
// are.
#pragma once

#import <Foundation/Foundation.h>

#include <math.h>

@interface XCTestCase : NSObject

/** Called before and after each test method, on an object created for that method. */
- (void)setUp;
- (void)tearDown;

/** Records a failure of the running test. */
- (void)recordFailureInFile:(const char *)file line:(int)line reason:(NSString *)reason;

@end

/** The failure's own message, followed by that of the test. */
NSString *XCTReason(NSString *reason, NSString *format, ...);

#define XCTFailWith_(why, ...) \
  [self recordFailureInFile:__FILE__ line:__LINE__ reason:XCTReason(why, @"" __VA_ARGS__)]

#define XCTFail(...) XCTFailWith_(@"failed", __VA_ARGS__)

#define XCTAssertTrue(condition, ...)                                            \
  do {                                                                           \
    if (!(condition)) XCTFailWith_(@"(" #condition ") is false", ##__VA_ARGS__); \
  } while (0)
#define XCTAssert(condition, ...) XCTAssertTrue(condition, ##__VA_ARGS__)
#define XCTAssertFalse(condition, ...)                                       \
  do {                                                                       \
    if (condition) XCTFailWith_(@"(" #condition ") is true", ##__VA_ARGS__); \
  } while (0)

#define XCTAssertNil(expression, ...)                                                         \
  do {                                                                                        \
    id found_ = (expression);                                                                 \
    if (found_ != nil)                                                                        \
      XCTFailWith_(([NSString stringWithFormat:@"(" #expression ") is %@, not nil", found_]), \
                   ##__VA_ARGS__);                                                            \
  } while (0)
#define XCTAssertNotNil(expression, ...)                                               \
  do {                                                                                 \
    if ((expression) == nil) XCTFailWith_(@"(" #expression ") is nil", ##__VA_ARGS__); \
  } while (0)

#define XCTAssertEqualObjects(one, other, ...)                                                            \
  do {                                                                                                    \
    id one_ = (one), other_ = (other);                                                                    \
    if (one_ != other_ && ![one_ isEqual:other_])                                                         \
      XCTFailWith_(([NSString stringWithFormat:@"(" #one ") is %@, not (" #other "), %@", one_, other_]), \
                   ##__VA_ARGS__);                                                                        \
  } while (0)

#define XCTCompare_(one, operation, other, ...)                                                      \
  do {                                                                                               \
    __typeof__(one) one_ = (one);                                                                    \
    __typeof__(other) other_ = (other);                                                              \
    if (!(one_ operation other_))                                                                    \
      XCTFailWith_(                                                                                  \
          ([NSString stringWithFormat:@"(" #one ") is %@, expected " #operation " (" #other "), %@", \
                                      @(one_), @(other_)]),                                          \
          ##__VA_ARGS__);                                                                            \
  } while (0)
#define XCTAssertEqual(one, other, ...) XCTCompare_(one, ==, other, ##__VA_ARGS__)
#define XCTAssertNotEqual(one, other, ...) XCTCompare_(one, !=, other, ##__VA_ARGS__)
#define XCTAssertGreaterThan(one, other, ...) XCTCompare_(one, >, other, ##__VA_ARGS__)
#define XCTAssertLessThan(one, other, ...) XCTCompare_(one, <, other, ##__VA_ARGS__)

#define XCTAssertEqualWithAccuracy(one, other, accuracy, ...)                                            \
  do {                                                                                                   \
    const double one_ = (one), other_ = (other);                                                         \
    if (!(fabs(one_ - other_) <= (accuracy)))                                                            \
      XCTFailWith_(([NSString stringWithFormat:@"(" #one ") is %.9g, not (" #other "), %.9g, within %g", \
                                               one_, other_, (double)(accuracy)]),                       \
                   ##__VA_ARGS__);                                                                       \
  } while (0)

#define XCTAssertThrowsSpecificNamed(expression, cls, wanted, ...)                                         \
  do {                                                                                                     \
    NSString *found_ = @"nothing";                                                                         \
    @try {                                                                                                 \
      (void)(expression);                                                                                  \
    } @catch (cls * exception_) {                                                                          \
      found_ = [exception_ name];                                                                          \
    }                                                                                                      \
    if (![found_ isEqual:(wanted)])                                                                        \
      XCTFailWith_(([NSString stringWithFormat:@"(" #expression ") raised %@, not %@", found_, (wanted)]), \
                   ##__VA_ARGS__);                                                                         \
  } while (0)
