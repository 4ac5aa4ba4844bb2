// Objects may be released in any order, and threads may share what is documented as shareable.
#import "support.h"

@interface LifetimeTests : ORTTestCase {
 @private
  ORTTrainingSession *_shared;
  NSArray<ORTValue *> *_batch;
  NSLock *_lock;
  NSMutableArray *_results;
}
@end

@implementation LifetimeTests

- (ORTTrainingSession *)makeSessionOver:(ORTCheckpoint *)state env:(ORTEnv *)env {
  return [[ORTTrainingSession alloc] initWithEnv:env
                                  sessionOptions:[self options]
                                      checkpoint:state
                                  trainModelPath:[self file:@"training_model.onnx" of:@"mlp_adamw"]
                                   evalModelPath:[self file:@"eval_model.onnx" of:@"mlp_adamw"]
                              optimizerModelPath:[self file:@"optimizer_model.onnx" of:@"mlp_adamw"]
                                           error:NULL];
}

- (void)testASessionOutlivesItsStateItsEnvironmentAndItsOptions {
  ORTTrainingSession *session = nil;
  @autoreleasepool {
    ORTEnv *env = [[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelFatal error:NULL];
    ORTCheckpoint *state = [[ORTCheckpoint alloc] initWithPath:[self file:@"checkpoint" of:@"mlp_adamw"]
                                                         error:NULL];
    session = [self makeSessionOver:state env:env];
    ORT_TEST_RELEASE(state);
    ORT_TEST_RELEASE(env);
  }
  for (NSUInteger i = 0; i < 3; ++i) {
    XCTAssertNotNil([session trainStepWithInputValues:[self batch:i of:@"mlp_adamw"] error:NULL]);
    XCTAssertTrue([session optimizerStepWithError:NULL]);
    XCTAssertTrue([session lazyResetGradWithError:NULL]);
  }
  XCTAssertNotNil([session evalStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:NULL]);
  ORT_TEST_RELEASE(session);
}

- (void)testAStateOutlivesItsSession {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  NSData *before = [[state getParameterWithName:@"fc1.bias" error:NULL] tensorDataWithError:NULL];
  @autoreleasepool {
    ORTTrainingSession *session = [self makeSessionOver:state env:[self env]];
    [session trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:NULL];
    [session optimizerStepWithError:NULL];
    ORT_TEST_RELEASE(session);
  }
  NSData *after = [[state getParameterWithName:@"fc1.bias" error:NULL] tensorDataWithError:NULL];
  XCTAssertFalse([before isEqualToData:after]);
  XCTAssertTrue([state saveCheckpointToPath:[self scratch:@"checkpoint"] withOptimizerState:YES error:NULL]);
}

- (void)testResultsOutliveAPoolWhenTheyAreKept {
  NSArray<ORTValue *> *outputs = nil;
  NSArray<NSString *> *names = nil;
  NSError *error = nil;
  @autoreleasepool {
    ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
    outputs = ORT_TEST_RETAINED([session trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:NULL]);
    names = ORT_TEST_RETAINED([session getTrainInputNamesWithError:NULL]);
    NSError *inner = nil;
    [session schedulerStepWithError:&inner];
    error = ORT_TEST_RETAINED(inner);
  }
  NSNumber *recorded = [[[self recordOf:@"mlp_adamw"] objectForKey:@"train_losses"] objectAtIndex:0];
  XCTAssertEqualWithAccuracy([self scalar:[outputs objectAtIndex:0]], [recorded doubleValue], 1e-3);
  XCTAssertEqual([names count], (NSUInteger)2);
  XCTAssertSays(error, ORTErrorCodeRuntimeException, @"SchedulerStep");
  ORT_TEST_RELEASE(outputs);
  ORT_TEST_RELEASE(names);
  ORT_TEST_RELEASE(error);
}

// Runs a method in several threads, and waits for all of them.
- (void)run:(SEL)selector threads:(NSUInteger)count {
  _lock = [[NSLock alloc] init];
  _results = [[NSMutableArray alloc] init];
  for (NSUInteger i = 0; i < count; ++i)
    [NSThread detachNewThreadSelector:selector toTarget:self withObject:nil];
  NSDate *end = [NSDate dateWithTimeIntervalSinceNow:60];
  while ([self resultCount]<count && [end timeIntervalSinceNow]> 0) [NSThread sleepForTimeInterval:0.01];
  XCTAssertEqual([self resultCount], count);
}

- (NSUInteger)resultCount {
  [_lock lock];
  const NSUInteger count = [_results count];
  [_lock unlock];
  return count;
}

- (void)addResult:(id)result {
  [_lock lock];
  [_results addObject:result];
  [_lock unlock];
}

- (void)tearDown {
  ORT_TEST_RELEASE(_lock);
  ORT_TEST_RELEASE(_results);
  ORT_TEST_RELEASE(_shared);
  ORT_TEST_RELEASE(_batch);
  _lock = nil;
  _results = nil;
  _shared = nil;
  _batch = nil;
  [super tearDown];
}

- (void)trainAlone {
  @autoreleasepool {
    ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
    float loss = 0;
    for (NSUInteger i = 0; i < 10; ++i) {
      loss = [self scalar:[[session trainStepWithInputValues:[self batch:i of:@"mlp_adamw"]
                                                       error:NULL] objectAtIndex:0]];
      [session optimizerStepWithError:NULL];
      [session lazyResetGradWithError:NULL];
    }
    [self addResult:@(loss)];
  }
}

- (void)testSessionsTrainInThreadsOfTheirOwn {
  [self run:@selector(trainAlone) threads:4];
  for (NSNumber *loss in _results) XCTAssertEqualObjects(loss, [_results objectAtIndex:0]);
  NSNumber *recorded = [[[self recordOf:@"mlp_adamw"] objectForKey:@"train_losses"] objectAtIndex:9];
  XCTAssertEqualWithAccuracy([[_results lastObject] doubleValue], [recorded doubleValue], 1e-3);
}

// Trains with the session of other threads; a step works, or returns an error that the session is busy.
- (void)trainTogether {
  @autoreleasepool {
    unsigned strange = 0;
    for (unsigned i = 0; i < 200; ++i) {
      @autoreleasepool {
        NSError *error = nil;
        if ([_shared trainStepWithInputValues:_batch error:&error] != nil) continue;
        const BOOL busy = [error code] == ORTErrorCodeRuntimeException &&
                          [[error localizedDescription] rangeOfString:@"thread"].location != NSNotFound;
        strange += !busy;
      }
    }
    [self addResult:@(strange)];
  }
}

- (void)testASessionInUseSaysSo {
  _shared = ORT_TEST_RETAINED([self sessionOf:@"mlp_adamw"]);
  _batch = ORT_TEST_RETAINED([self batch:0 of:@"mlp_adamw"]);
  [self run:@selector(trainTogether) threads:4];
  for (NSNumber *strange in _results) XCTAssertEqual([strange intValue], 0);
  XCTAssertNotNil([_shared trainStepWithInputValues:_batch error:NULL]);
}

@end
