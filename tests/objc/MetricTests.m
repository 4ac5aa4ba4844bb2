// Metrics: batches one by one, their state, and what is refused.
#import "support.h"

@interface MetricTests : ORTTestCase
@end

@implementation MetricTests

static const float kScores[] = {3, 1, 2, 0, 5, 4, 1, 2, 9, 6, 1, 1, 0, 1, 0};
static const int64_t kClasses[] = {0, 1, 2, 1, 1};

- (ORTMetric *)metric:(NSString *)name options:(NSString *)options {
  return ORT_TEST_AUTORELEASED([[ORTMetric alloc] initWithName:name options:options error:NULL]);
}

- (ORTValue *)valueOf:(const void *)bytes
                 size:(NSUInteger)size
                 type:(ORTTensorElementDataType)type
                shape:(NSArray<NSNumber *> *)shape {
  return ORT_TEST_AUTORELEASED([[ORTValue alloc] initWithTensorData:[NSMutableData dataWithBytes:bytes
                                                                                          length:size]
                                                        elementType:type
                                                              shape:shape
                                                              error:NULL]);
}

- (BOOL)count:(ORTMetric *)metric from:(NSUInteger)from to:(NSUInteger)to {
  const NSUInteger rows = to - from;
  return [metric updateWithPrediction:[self valueOf:kScores + 3 * from
                                               size:3 * rows * sizeof(float)
                                               type:ORTTensorElementDataTypeFloat
                                              shape:@[ @(rows), @3 ]]
                               target:[self valueOf:kClasses + from
                                               size:rows * sizeof(int64_t)
                                               type:ORTTensorElementDataTypeInt64
                                              shape:@[ @(rows) ]]
                                 loss:nil
                                error:NULL];
}

- (double)resultOf:(ORTMetric *)metric {
  return *(const double *)[[[metric resultWithError:NULL] tensorDataWithError:NULL] bytes];
}

- (void)testBatchesOfAnySizeGiveTheSameValueAndAStateContinues {
  ORTMetric *whole = [self metric:@"accuracy" options:@""], *first = [self metric:@"accuracy" options:@""];
  ORTMetric *second = [self metric:@"accuracy" options:@""];
  XCTAssertTrue([self count:whole from:0 to:5]);
  XCTAssertEqual([self resultOf:whole], 0.8);
  XCTAssertTrue([self count:first from:0 to:1]);
  XCTAssertTrue([second setState:[first getStateWithError:NULL] error:NULL]);
  XCTAssertTrue([self count:second from:1 to:5]);
  XCTAssertEqual([self resultOf:second], 0.8);
  XCTAssertTrue([second resetWithError:NULL]);
  XCTAssertTrue([self resultOf:second] != [self resultOf:second]);  // NaN
  XCTAssertTrue([self count:second from:1 to:5]);
  XCTAssertTrue([second mergeWithMetric:first error:NULL]);
  XCTAssertEqual([self resultOf:second], 0.8);
}

- (void)testWhatDoesNotFitIsRefused {
  NSError *error = nil;
  XCTAssertNil([[ORTMetric alloc] initWithName:@"acuracy" options:@"" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"did you mean \"accuracy\"");
  NSData *bytes = [@"no" dataUsingEncoding:NSUTF8StringEncoding];
  XCTAssertTrue(![[self metric:@"top2" options:@""] setState:bytes error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"expected the state of a metric, found 2 other bytes");
}

@end
