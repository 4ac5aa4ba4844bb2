// States: properties, parameters, saving.
#import "support.h"

@interface CheckpointTests : ORTTestCase
@end

@implementation CheckpointTests

- (void)testPropertiesOfTheThreeTypes {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  NSError *error = nil;
  XCTAssertTrue([state addIntPropertyWithName:@"epoch" value:INT64_MIN error:&error]);
  XCTAssertTrue([state addFloatPropertyWithName:@"loss" value:0.1f error:&error]);
  XCTAssertTrue([state addStringPropertyWithName:@"größe" value:@"字 und Text" error:&error]);
  NSString *path = [self scratch:@"checkpoint"];
  XCTAssertTrue([state saveCheckpointToPath:path withOptimizerState:NO error:&error]);

  ORTCheckpoint *back = ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:path error:&error]);
  XCTAssertEqual([back getIntPropertyWithName:@"epoch" error:&error], (int64_t)INT64_MIN);
  XCTAssertEqual([back getFloatPropertyWithName:@"loss" error:&error], 0.1f);
  XCTAssertEqualObjects([back getStringPropertyWithName:@"größe" error:&error], @"字 und Text");
  NSArray *names = @[ @"epoch", @"größe", @"loss" ];
  XCTAssertEqualObjects([back getPropertyNamesWithError:&error], names);
  XCTAssertEqual((int)[back getPropertyTypeWithPropertyName:@"loss" error:&error], (int)ORTPropertyTypeFloat);
  XCTAssertNil(error);

  XCTAssertTrue([back addStringPropertyWithName:@"epoch" value:@"" error:&error]);
  XCTAssertEqualObjects([back getStringPropertyWithName:@"epoch" error:&error], @"");
}

- (void)testAPropertyOfAnotherTypeIsRefused {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  [state addIntPropertyWithName:@"int" value:5 error:NULL];
  [state addFloatPropertyWithName:@"float" value:5 error:NULL];
  [state addStringPropertyWithName:@"string" value:@"5" error:NULL];
  NSError *error = nil;
  XCTAssertEqual([state getIntPropertyWithName:@"float" error:&error], (int64_t)0);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"getIntPropertyWithName:error:", @"property float",
                @"expected an integer, found a float");
  XCTAssertEqual([state getFloatPropertyWithName:@"string" error:&error], 0.0f);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"expected a float, found a string");
  XCTAssertNil([state getStringPropertyWithName:@"int" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"expected a string, found an integer");
  XCTAssertEqual([state getIntPropertyWithName:@"nothing" error:&error], (int64_t)0);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"GetProperty", @"nothing");
  XCTAssertEqual([state getIntPropertyWithName:@"string" error:NULL], (int64_t)0);
}

- (void)testParameters {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  NSArray *names = @[ @"fc1.weight", @"fc1.bias", @"fc2.weight", @"fc2.bias" ];
  XCTAssertEqualObjects([state getParameterNamesWithError:NULL], names);
  ORTValue *bias = [state getParameterWithName:@"fc2.bias" error:NULL];
  NSMutableData *data = [bias tensorDataWithError:NULL];
  XCTAssertEqual([data length], 10 * sizeof(float));
  ((float *)[data mutableBytes])[3] = 42;
  // The value is a copy until it is written back.
  const float *old = [[[state getParameterWithName:@"fc2.bias" error:NULL] tensorDataWithError:NULL] bytes];
  XCTAssertNotEqual(old[3], 42.0f);
  XCTAssertTrue([state updateParameterWithName:@"fc2.bias" value:bias error:NULL]);
  XCTAssertEqualObjects([[state getParameterWithName:@"fc2.bias" error:NULL] tensorDataWithError:NULL], data);
  NSArray *shape = @[ @10 ];
  XCTAssertEqualObjects([[state getParameterTypeAndShapeWithParameterName:@"fc2.bias" error:NULL] shape],
                        shape);
}

- (void)testTruthValuesSayByTheErrorThatTheyFailed {
  ORTCheckpoint *state = [self stateOf:@"resnet_frozen"];
  NSError *error = nil;
  XCTAssertFalse([state isParameterTrainableWithParameterName:@"stem.weight" error:&error]);
  XCTAssertNil(error);
  XCTAssertTrue([state
      isParameterTrainableWithParameterName:[[state getParameterNamesWithError:NULL] objectAtIndex:0]
                                      error:&error]);
  XCTAssertNil(error);
  XCTAssertFalse([state isParameterTrainableWithParameterName:@"nothing" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"nothing");
  XCTAssertFalse([state isNominalWithError:NULL]);
}

- (void)testGradients {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  NSError *error = nil;
  XCTAssertNil([state getParameterGradientWithParameterName:@"fc1.bias" error:&error]);
  XCTAssertSays(error, ORTErrorCodeRuntimeException, @"session");
  error = nil;
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw" over:state];
  ORTValue *zeros = [state getParameterGradientWithParameterName:@"fc1.bias" error:&error];
  XCTAssertNil(error);
  XCTAssertEqualObjects([zeros tensorDataWithError:NULL], [NSMutableData dataWithLength:32 * sizeof(float)]);
  [session trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:NULL];
  ORTValue *gradient = [state getParameterGradientWithParameterName:@"fc1.bias" error:NULL];
  XCTAssertEqual([[gradient tensorDataWithError:NULL] length], 32 * sizeof(float));
}

- (void)testSettings {
  ORTSessionOptions *options = [self options];
  NSError *error = nil;
  XCTAssertTrue([options setIntraOpNumThreads:1 error:&error]);
  XCTAssertTrue([options setInterOpNumThreads:1 error:&error]);
  XCTAssertTrue([options setGraphOptimizationLevel:ORTGraphOptimizationLevelBasic error:&error]);
  XCTAssertTrue([options setExecutionMode:ORTExecutionModeSequential error:&error]);
  XCTAssertTrue([options setLogSeverityLevel:ORTLoggingLevelError error:&error]);
  XCTAssertTrue([options setLogVerbosityLevel:0 error:&error]);
  XCTAssertTrue([options setLogID:@"a session" error:&error]);
  XCTAssertTrue([options setUseDeterministicCompute:YES error:&error]);
  XCTAssertTrue([options addConfigEntryWithKey:@"key" value:@"Wert ü" error:&error]);
  XCTAssertTrue([options hasConfigEntryWithKey:@"key" error:&error]);
  XCTAssertFalse([options hasConfigEntryWithKey:@"other" error:&error]);
  XCTAssertEqualObjects([options getConfigEntryWithKey:@"key" error:&error], @"Wert ü");
  XCTAssertNil(error);
  XCTAssertNil([options getConfigEntryWithKey:@"other" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"other");
  XCTAssertFalse([options setIntraOpNumThreads:-1 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"SetIntraOpNumThreads");
  XCTAssertFalse([options setGraphOptimizationLevel:(ORTGraphOptimizationLevel)7 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"7");

  ORTRunOptions *run = ORT_TEST_AUTORELEASED([[ORTRunOptions alloc] initWithError:NULL]);
  XCTAssertTrue([run setLogSeverityLevel:ORTLoggingLevelWarning error:NULL]);
  XCTAssertTrue([run setLogVerbosityLevel:1 error:NULL]);
  XCTAssertTrue([run setLogTag:@"a step" error:NULL]);
  XCTAssertTrue([run addConfigEntryWithKey:@"key" value:@"value" error:NULL]);
  XCTAssertFalse([run addConfigEntryWithKey:@"" value:@"value" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"AddRunConfigEntry");
}

@end
