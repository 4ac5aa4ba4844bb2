// The training loop reproduces the recorded runs.
#import "support.h"

@interface TrainingTests : ORTTestCase
@end

@implementation TrainingTests

static void CheckClose(TrainingTests *self, float found, NSNumber *recorded, NSString *what) {
  XCTAssertEqualWithAccuracy(found, [recorded doubleValue], 1e-4 * fabs([recorded doubleValue]), @"%@", what);
}

// Repeats a recorded run; returns its session.
- (ORTTrainingSession *)repeat:(NSString *)run over:(ORTCheckpoint *)state {
  NSDictionary *record = [self recordOf:run];
  ORTTrainingSession *session = [self sessionOf:run over:state];
  NSError *error = nil;
  NSDictionary *schedule = [record objectForKey:@"scheduler"];
  const BOOL scheduled = [schedule isKindOfClass:[NSDictionary class]];
  if (scheduled) {
    // As it ran: its counts were passed in the wrong order.
    XCTAssertTrue([session
        registerLinearLRSchedulerWithWarmupStepCount:[[schedule objectForKey:@"total"] longLongValue]
                                      totalStepCount:[[schedule objectForKey:@"warmup"] longLongValue]
                                           initialLr:[[schedule objectForKey:@"initial_lr"] floatValue]
                                               error:&error]);
  }
  NSArray *losses = [record objectForKey:@"train_losses"];
  for (NSUInteger i = 0; i < [losses count]; ++i) {
    const float rate = [session getLearningRateWithError:&error];
    XCTAssertEqualWithAccuracy(rate, [[[record objectForKey:@"learning_rates"] objectAtIndex:i] doubleValue],
                               1e-7);
    NSArray<ORTValue *> *outputs = [session trainStepWithInputValues:[self batch:i of:run] error:&error];
    CheckClose(self, [self scalar:[outputs objectAtIndex:0]], [losses objectAtIndex:i],
               [NSString stringWithFormat:@"%@, step %lu", run, (unsigned long)i]);
    XCTAssertTrue([session optimizerStepWithError:&error]);
    if (scheduled) XCTAssertTrue([session schedulerStepWithError:&error]);
    XCTAssertTrue([session lazyResetGradWithError:&error]);
  }
  XCTAssertNil(error);
  return session;
}

- (void)testRecordedRuns {
  for (NSString *run in @[ @"mlp_adamw", @"mlp_sgd_sched", @"lenet_adamw", @"resnet_frozen" ]) {
    ORTCheckpoint *state = [self stateOf:run];
    ORTTrainingSession *session = [self repeat:run over:state];
    NSDictionary *record = [self recordOf:run];
    NSArray *losses = [record objectForKey:@"eval_losses"];
    if ([losses isKindOfClass:[NSArray class]]) {
      for (NSUInteger i = 0; i < [losses count]; ++i) {
        NSArray<ORTValue *> *outputs = [session evalStepWithInputValues:[self batch:i of:run] error:NULL];
        CheckClose(self, [self scalar:[outputs objectAtIndex:0]], [losses objectAtIndex:i], @"eval");
      }
    }
    for (NSString *name in [record objectForKey:@"parameters"]) {
      ORTValue *parameter = [state getParameterWithName:name error:NULL];
      NSData *data = [parameter tensorDataWithError:NULL];
      const float *values = [data bytes];
      double squares = 0;
      for (NSUInteger i = 0; i < [data length] / sizeof *values; ++i)
        squares += (double)values[i] * values[i];
      NSDictionary *recorded = [[record objectForKey:@"parameters"] objectForKey:name];
      XCTAssertEqualWithAccuracy(sqrt(squares), [[recorded objectForKey:@"l2"] doubleValue],
                                 1e-3 * (1 + [[recorded objectForKey:@"l2"] doubleValue]), @"%@ of %@", name,
                                 run);
      XCTAssertEqualObjects([[parameter tensorTypeAndShapeInfoWithError:NULL] shape],
                            [recorded objectForKey:@"shape"], @"%@ of %@", name, run);
    }
  }
}

- (void)testModelsInMemoryTrainAsThoseInFilesDo {
  NSString *run = @"mlp_adamw";
  NSData *state_data = [NSData dataWithContentsOfFile:[self file:@"checkpoint" of:run]];
  ORTCheckpoint *state = ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithData:state_data error:NULL]);
  ORTTrainingSession *session = ORT_TEST_AUTORELEASED([[ORTTrainingSession alloc]
             initWithEnv:[self env]
          sessionOptions:[self options]
              checkpoint:state
          trainModelData:[NSData dataWithContentsOfFile:[self file:@"training_model.onnx" of:run]]
           evalModelData:nil
      optimizerModelData:[NSData dataWithContentsOfFile:[self file:@"optimizer_model.onnx" of:run]]
                   error:NULL]);
  NSArray<ORTValue *> *found = [session trainStepWithInputValues:[self batch:0 of:run] error:NULL];
  NSArray<ORTValue *> *wanted = [[self sessionOf:run] trainStepWithInputValues:[self batch:0 of:run]
                                                                         error:NULL];
  XCTAssertEqual([self scalar:[found objectAtIndex:0]], [self scalar:[wanted objectAtIndex:0]]);
  XCTAssertTrue([session optimizerStepWithError:NULL]);
  NSError *error = nil;
  XCTAssertNil([session evalStepWithInputValues:[self batch:0 of:run] error:&error]);
  XCTAssertSays(error, ORTErrorCodeNoModel, @"eval model");
}

- (void)testNames {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSArray *inputs = [session getTrainInputNamesWithError:NULL];
  XCTAssertEqual([inputs count], (NSUInteger)2);
  XCTAssertEqualObjects(inputs, [session getEvalInputNamesWithError:NULL]);
  NSArray *outputs = [session getTrainOutputNamesWithError:NULL];
  XCTAssertEqual([outputs count], [[session trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"]
                                                               error:NULL] count]);
  XCTAssertEqual([[session getEvalOutputNamesWithError:NULL] count], [outputs count]);
  ORTTensorTypeAndShapeInfo *info = [session getModelInputTypeInfoWithTraining:YES index:0 error:NULL];
  XCTAssertEqual((int)[info elementType], (int)ORTTensorElementDataTypeFloat);
  NSArray *shape = @[ @(-1), @64 ];
  XCTAssertEqualObjects([info shape], shape);
}

- (void)testStepsWriteIntoTensorsOfTheCaller {
  NSString *run = @"mlp_adamw";
  NSMutableData *data = [NSMutableData dataWithLength:sizeof(float)];
  ORTValue *loss = ORT_TEST_AUTORELEASED([[ORTValue alloc] initWithTensorData:data
                                                                  elementType:ORTTensorElementDataTypeFloat
                                                                        shape:@[]
                                                                        error:NULL]);
  ORTRunOptions *options = ORT_TEST_AUTORELEASED([[ORTRunOptions alloc] initWithError:NULL]);
  ORTTrainingSession *session = [self sessionOf:run];
  NSError *error = nil;
  XCTAssertTrue([session trainStepWithInputValues:[self batch:0 of:run]
                                     outputValues:@[ loss ]
                                       runOptions:options
                                            error:&error],
                @"%@", error);
  NSNumber *recorded = [[[self recordOf:run] objectForKey:@"train_losses"] objectAtIndex:0];
  CheckClose(self, *(const float *)[data bytes], recorded, @"in the data of the caller");
  XCTAssertTrue([session evalStepWithInputValues:[self batch:0 of:run]
                                    outputValues:@[ loss ]
                                      runOptions:nil
                                           error:&error],
                @"%@", error);
  ORTValue *wrong = [self zeros:ORTTensorElementDataTypeFloat shape:@[ @2 ]];
  XCTAssertFalse([session trainStepWithInputValues:[self batch:0 of:run]
                                      outputValues:@[ wrong ]
                                        runOptions:nil
                                             error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"TrainStep", @"output");
}

- (void)testRunOptionsEndAStep {
  NSString *run = @"mlp_adamw";
  ORTTrainingSession *session = [self sessionOf:run];
  ORTRunOptions *options = ORT_TEST_AUTORELEASED([[ORTRunOptions alloc] initWithError:NULL]);
  ORTValue *loss = [self zeros:ORTTensorElementDataTypeFloat shape:@[]];
  XCTAssertTrue([options setTerminate:YES error:NULL]);
  NSError *error = nil;
  XCTAssertFalse([session trainStepWithInputValues:[self batch:0 of:run]
                                      outputValues:@[ loss ]
                                        runOptions:options
                                             error:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"TrainStep", @"Exiting due to terminate flag being set to true");
  XCTAssertTrue([options setTerminate:NO error:NULL]);
  XCTAssertTrue([session trainStepWithInputValues:[self batch:0 of:run]
                                     outputValues:@[ loss ]
                                       runOptions:options
                                            error:NULL]);
  XCTAssertTrue([session optimizerStepWithRunOptions:options error:NULL]);
}

- (void)testLearningRates {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSError *error = nil;
  XCTAssertTrue([session setLearningRate:0.25f error:&error]);
  XCTAssertEqual([session getLearningRateWithError:&error], 0.25f);
  XCTAssertTrue([session registerLinearLRSchedulerWithWarmupStepCount:2
                                                       totalStepCount:6
                                                            initialLr:1
                                                                error:&error]);
  XCTAssertTrue([session schedulerStepWithError:&error]);
  XCTAssertEqual([session getLearningRateWithError:&error], 0.0f);
  XCTAssertNil(error);
}

- (void)testParametersGoOutInOneBufferAndComeBack {
  NSString *run = @"resnet_frozen";
  ORTCheckpoint *state = [self stateOf:run];
  ORTTrainingSession *session = [self sessionOf:run over:state];
  NSError *error = nil;
  for (NSNumber *trainable in @[ @(YES), @(NO) ]) {
    ORTValue *before = [session toBufferWithTrainable:[trainable boolValue] error:&error];
    NSData *copy = [NSData dataWithData:[before tensorDataWithError:NULL]];
    XCTAssertNotNil([session trainStepWithInputValues:[self batch:0 of:run] error:&error]);
    XCTAssertTrue([session optimizerStepWithError:&error]);
    ORTValue *moved = [session toBufferWithTrainable:[trainable boolValue] error:&error];
    XCTAssertFalse([copy isEqualToData:[moved tensorDataWithError:NULL]]);
    XCTAssertTrue([session fromBufferWithValue:before error:&error], @"%@", error);
    ORTValue *back = [session toBufferWithTrainable:[trainable boolValue] error:&error];
    XCTAssertEqualObjects(copy, [back tensorDataWithError:NULL]);
  }
  XCTAssertLessThan([[[session toBufferWithTrainable:YES error:NULL] tensorDataWithError:NULL] length],
                    [[[session toBufferWithTrainable:NO error:NULL] tensorDataWithError:NULL] length]);
  XCTAssertNil(error);
}

- (void)testSavedAndResumedTrainingIsUninterruptedTraining {
  NSString *run = @"mlp_adamw";
  ORTCheckpoint *state = [self stateOf:run];
  ORTTrainingSession *session = [self sessionOf:run over:state];
  NSString *path = [self scratch:@"checkpoint"];
  float wanted = 0;
  for (NSUInteger i = 0; i < 6; ++i) {
    if (i == 3) XCTAssertTrue([state saveCheckpointToPath:path withOptimizerState:YES error:NULL]);
    wanted = [self scalar:[[session trainStepWithInputValues:[self batch:i of:run]
                                                       error:NULL] objectAtIndex:0]];
    [session optimizerStepWithError:NULL];
    [session lazyResetGradWithError:NULL];
  }
  ORTCheckpoint *saved = ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:path error:NULL]);
  XCTAssertEqual([saved getOptimizerStepCountWithError:NULL], (int64_t)3);
  ORTTrainingSession *resumed = [self sessionOf:run over:saved];
  float found = 0;
  for (NSUInteger i = 3; i < 6; ++i) {
    found = [self scalar:[[resumed trainStepWithInputValues:[self batch:i of:run]
                                                      error:NULL] objectAtIndex:0]];
    [resumed optimizerStepWithError:NULL];
    [resumed lazyResetGradWithError:NULL];
  }
  XCTAssertEqual(found, wanted);
}

- (void)testExport {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSString *path = [self scratch:@"Übung/model.onnx"];
  NSError *error = nil;
  XCTAssertFalse([session exportModelForInferenceWithOutputPath:path
                                               graphOutputNames:@[ @"output" ]
                                                          error:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"ExportModelForInferencing", @"Übung");
  [[NSFileManager defaultManager] createDirectoryAtPath:[path stringByDeletingLastPathComponent]
                            withIntermediateDirectories:YES
                                             attributes:nil
                                                  error:NULL];
  XCTAssertTrue([session exportModelForInferenceWithOutputPath:path
                                              graphOutputNames:@[ @"output" ]
                                                         error:&error]);
  XCTAssertGreaterThan([[NSData dataWithContentsOfFile:path] length], (NSUInteger)4000);
}

- (void)testTheSameSeedDrawsTheSameNumbers {
  ORTSetSeed(3);
  NSArray<ORTValue *> *batch = [self batch:0 of:@"mlp_adamw"];
  const float one = [self scalar:[[[self sessionOf:@"mlp_adamw"] trainStepWithInputValues:batch
                                                                                    error:NULL] lastObject]];
  ORTSetSeed(3);
  const float other =
      [self scalar:[[[self sessionOf:@"mlp_adamw"] trainStepWithInputValues:batch error:NULL] lastObject]];
  XCTAssertEqual(one, other);
}

- (void)testWithoutOptionsASessionHasTheDefaults {
  NSString *run = @"mlp_adamw";
  NSError *error = nil;
  ORTTrainingSession *session =
      ORT_TEST_AUTORELEASED([[ORTTrainingSession alloc] initWithEnv:[self env]
                                                     sessionOptions:nil
                                                         checkpoint:[self stateOf:run]
                                                     trainModelPath:[self file:@"training_model.onnx" of:run]
                                                      evalModelPath:nil
                                                 optimizerModelPath:nil
                                                              error:&error]);
  XCTAssertNotNil(session, @"%@", error);
  const float loss = [self scalar:[[session trainStepWithInputValues:[self batch:0 of:run]
                                                               error:&error] objectAtIndex:0]];
  CheckClose(self, loss, [[[self recordOf:run] objectForKey:@"train_losses"] objectAtIndex:0], run);
}

- (void)testAnOptimizerIsAttachedLater {
  NSString *run = @"mlp_adamw";
  ORTTrainingSession *session =
      ORT_TEST_AUTORELEASED([[ORTTrainingSession alloc] initWithEnv:[self env]
                                                     sessionOptions:[self options]
                                                         checkpoint:[self stateOf:run]
                                                     trainModelPath:[self file:@"training_model.onnx" of:run]
                                                      evalModelPath:nil
                                                 optimizerModelPath:nil
                                                              error:NULL]);
  XCTAssertNotNil([session trainStepWithInputValues:[self batch:0 of:run] error:NULL]);
  NSError *error = nil;
  XCTAssertFalse([session optimizerStepWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeNoModel, @"OptimizerStep", @"optimizer model");
  XCTAssertTrue([session attachOptimizerWithOptimizerModelPath:[self file:@"optimizer_model.onnx" of:run]
                                                         error:NULL]);
  XCTAssertTrue([session optimizerStepWithError:NULL]);
}

@end
