// Bad input results in an NSError that says which argument was wrong, never in a crash.
#import "support.h"

@interface ErrorTests : ORTTestCase
@end

@implementation ErrorTests

// An object of a class that a method does not expect, hidden from the compiler.
static id Foreign(void) { return @"a text"; }

// A nil where the headers allow none, hidden from the compiler.
static id Nothing(void) { return nil; }

// An object that was allocated and never initialized, as -init would have left it.
- (id)empty:(Class)cls {
  return ORT_TEST_AUTORELEASED([(NSObject *)[cls alloc] init]);
}

- (void)testASuccessLeavesTheErrorAlone {
  NSError *before = [NSError errorWithDomain:@"another" code:7 userInfo:nil];
  NSError *error = before;
  ORTCheckpoint *state = ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:[self file:@"checkpoint"
                                                                                           of:@"mlp_adamw"]
                                                                             error:&error]);
  XCTAssertTrue([state addIntPropertyWithName:@"a" value:1 error:&error]);
  XCTAssertEqual([state getIntPropertyWithName:@"a" error:&error], (int64_t)1);
  XCTAssertNotNil([state getParameterNamesWithError:&error]);
  XCTAssertNotNil([[self sessionOf:@"mlp_adamw"] trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"]
                                                                    error:&error]);
  XCTAssertTrue(error == before);
}

- (void)testNobodyHasToAskForTheError {
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:@"/nowhere" error:NULL]));
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:Nothing() error:NULL]));
  XCTAssertNil([[self sessionOf:@"mlp_adamw"] trainStepWithInputValues:Nothing() error:NULL]);
  XCTAssertFalse([[self stateOf:@"mlp_adamw"] updateParameterWithName:@"nothing" value:Foreign() error:NULL]);
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTEnv alloc] initWithLoggingLevel:(ORTLoggingLevel)9 error:NULL]));
}

- (void)testEnvironment {
  NSError *error = nil;
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTEnv alloc] initWithLoggingLevel:(ORTLoggingLevel)9 error:&error]));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CreateEnv", @"9");
}

- (void)testFiles {
  NSError *error = nil;
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:@"/nowhere/at all" error:&error]));
  XCTAssertSays(error, ORTErrorCodeNoSuchFile, @"LoadCheckpoint", @"/nowhere/at all");
  NSString *model = [self file:@"training_model.onnx" of:@"mlp_adamw"];
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithPath:model error:&error]));
  XCTAssertSays(error, ORTErrorCodeFail, @"LoadCheckpoint");
  XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTCheckpoint alloc] initWithData:[NSData data] error:&error]));
  XCTAssertSays(error, ORTErrorCodeFail, @"LoadCheckpointFromBuffer");
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  XCTAssertFalse([state saveCheckpointToPath:@"/nowhere/at all" withOptimizerState:YES error:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"SaveCheckpoint", @"/nowhere/at all");
  XCTAssertFalse([state saveCheckpointToPath:Nothing() withOptimizerState:YES error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument,
                @"-[ORTCheckpoint saveCheckpointToPath:withOptimizerState:error:]",
                @"argument path: expected NSString, found nil");
}

- (void)testTextsThatCHasNoFormOf {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  const unichar zero[] = {'a', 0, 'b'};
  NSError *error = nil;
  NSString *half = [NSString stringWithFormat:@"a%Cb", (unichar)0xD800];
  XCTAssertFalse([state addIntPropertyWithName:half value:1 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument name", @"surrogate");
  XCTAssertFalse([state addStringPropertyWithName:@"a"
                                            value:[NSString stringWithCharacters:zero length:3]
                                            error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument value", @"null character");
}

- (void)testSessionArguments {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  NSString *model = [self file:@"training_model.onnx" of:@"mlp_adamw"];
  struct {
    id env, options, state, train, eval, optimizer;
    ORTErrorCode code;
    NSString *said;
  } wrong[] = {
      {Nothing(), [self options], state, model, nil, nil, ORTErrorCodeInvalidArgument,
       @"argument env: expected ORTEnv, found nil"},
      {[self env],
       [self env],
       state,
       model,
       nil,
       nil,
       ORTErrorCodeInvalidArgument,
       @"argument sessionOptions: expected ORTSessionOptions, found ORTEnv"},
      {[self env],
       [self options],
       Foreign(),
       model,
       nil,
       nil,
       ORTErrorCodeInvalidArgument,
       @"argument checkpoint: expected ORTCheckpoint, found "},
      {[self env],
       [self options],
       [self empty:[ORTCheckpoint class]],
       model,
       nil,
       nil,
       ORTErrorCodeInvalidArgument,
       @"argument checkpoint: expected an initialized ORTCheckpoint"},
      {[self env],
       [self options],
       state,
       Nothing(),
       nil,
       nil,
       ORTErrorCodeInvalidArgument,
       @"argument trainModelPath: expected NSString, found nil"},
      {[self env],
       [self options],
       state,
       model,
       @[],
       nil,
       ORTErrorCodeInvalidArgument,
       @"argument evalModelPath: expected NSString, found "},
      {[self env], [self options], state, @"/nowhere", nil, nil, ORTErrorCodeNoSuchFile, @"/nowhere"},
      {[self env], [self options], state, model, @"/nowhere", nil, ORTErrorCodeNoSuchFile, @"/nowhere"},
      {[self env], [self options], state, model, nil, @"/nowhere", ORTErrorCodeNoSuchFile, @"/nowhere"},
      {[self env],
       [self options],
       state,
       [self file:@"checkpoint" of:@"mlp_adamw"],
       nil,
       nil,
       ORTErrorCodeInvalidProtobuf,
       @"CreateTrainingSession"},
      {[self env],
       [self options],
       [self stateOf:@"lenet_adamw"],
       model,
       nil,
       nil,
       ORTErrorCodeInvalidArgument,
       @"CreateTrainingSession"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    NSError *error = nil;
    XCTAssertNil(ORT_TEST_AUTORELEASED([[ORTTrainingSession alloc] initWithEnv:wrong[i].env
                                                                sessionOptions:wrong[i].options
                                                                    checkpoint:wrong[i].state
                                                                trainModelPath:wrong[i].train
                                                                 evalModelPath:wrong[i].eval
                                                            optimizerModelPath:wrong[i].optimizer
                                                                         error:&error]));
    XCTAssertSays(error, wrong[i].code, wrong[i].said);
  }
}

- (void)testInputsOfAStep {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSArray<ORTValue *> *batch = [self batch:0 of:@"mlp_adamw"];
  ORTValue *x = [batch objectAtIndex:0], *y = [batch objectAtIndex:1];
  NSArray *wrong[] = {
      @[ @[], @"TrainStep" ],
      @[ @[ x ], @"TrainStep" ],
      @[ @[ x, y, y ], @"TrainStep" ],
      @[ @[ y, x ], @"TrainStep" ],
      @[ @[ x, Foreign() ], @"argument inputs, element 1: expected ORTValue, found " ],
      @[ @[ x, [NSNull null] ], @"argument inputs, element 1: expected ORTValue, found NSNull" ],
      @[
        @[ [self empty:[ORTValue class]], y ], @"argument inputs, element 0: expected an initialized ORTValue"
      ],
      @[ Foreign(), @"argument inputs: expected NSArray, found " ],
      @[ @[ [self zeros:ORTTensorElementDataTypeFloat shape:@[ @16, @63 ]], y ], @"63" ],
      @[ @[ [self zeros:ORTTensorElementDataTypeDouble shape:@[ @16, @64 ]], y ], @"float64" ],
      @[ @[ [self zeros:ORTTensorElementDataTypeFloat shape:@[]], y ], @"TrainStep" ],
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    NSError *error = nil;
    XCTAssertNil([session trainStepWithInputValues:[wrong[i] objectAtIndex:0] error:&error]);
    XCTAssertSays(error, ORTErrorCodeInvalidArgument, [wrong[i] objectAtIndex:1]);
  }
  NSError *error = nil;
  XCTAssertNil([session trainStepWithInputValues:Nothing() error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"-[ORTTrainingSession trainStepWithInputValues:error:]",
                @"argument inputs: expected NSArray, found nil");
  NSArray *mixed = @[ x, Foreign() ];
  XCTAssertNil([session evalStepWithInputValues:mixed error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"element 1");
  XCTAssertNotNil([session trainStepWithInputValues:batch error:&error],
                  @"after all that a step still works");
}

- (void)testCallsInTheWrongOrder {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSError *error = nil;
  XCTAssertFalse([session optimizerStepWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeRuntimeException, @"OptimizerStep");
  XCTAssertFalse([session schedulerStepWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeRuntimeException, @"SchedulerStep");
}

- (void)testSessionsWithoutAllModels {
  ORTTrainingSession *session = ORT_TEST_AUTORELEASED([[ORTTrainingSession alloc]
             initWithEnv:[self env]
          sessionOptions:[self options]
              checkpoint:[self stateOf:@"mlp_adamw"]
          trainModelPath:[self file:@"training_model.onnx" of:@"mlp_adamw"]
           evalModelPath:nil
      optimizerModelPath:nil
                   error:NULL]);
  NSError *error = nil;
  XCTAssertNil([session evalStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:&error]);
  XCTAssertSays(error, ORTErrorCodeNoModel, @"eval model");
  XCTAssertEqual([[session getEvalInputNamesWithError:NULL] count], 0u);
  XCTAssertEqual([[session getEvalOutputNamesWithError:NULL] count], 0u);
  NSString *path = [self scratch:@"model.onnx"];
  XCTAssertFalse([session exportModelForInferenceWithOutputPath:path
                                               graphOutputNames:@[ @"output" ]
                                                          error:&error]);
  XCTAssertSays(error, ORTErrorCodeNoModel, @"ExportModelForInferencing");
  XCTAssertEqual([session getLearningRateWithError:&error], 0.0f);
  XCTAssertSays(error, ORTErrorCodeNoModel, @"optimizer model");
}

- (void)testNumbersAndNames {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSError *error = nil;
  XCTAssertFalse([session setLearningRate:NAN error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"SetLearningRate");
  XCTAssertFalse([session registerLinearLRSchedulerWithWarmupStepCount:-1
                                                        totalStepCount:5
                                                             initialLr:1
                                                                 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"RegisterLinearLRScheduler", @"-1");
  NSString *path = [self scratch:@"model.onnx"];
  XCTAssertFalse([session exportModelForInferenceWithOutputPath:path
                                               graphOutputNames:@[ @"nothing" ]
                                                          error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"nothing");
  XCTAssertFalse([session exportModelForInferenceWithOutputPath:path graphOutputNames:@[] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"ExportModelForInferencing");
  NSArray *mixed = @[ @"output", @5 ];
  XCTAssertFalse([session exportModelForInferenceWithOutputPath:path graphOutputNames:mixed error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument,
                @"argument graphOutputNames, element 1: expected NSString, found ");
  XCTAssertNil([session getModelInputTypeInfoWithTraining:YES index:9 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"9");
}

- (void)testBuffersAndParametersThatDoNotFit {
  ORTCheckpoint *state = [self stateOf:@"mlp_adamw"];
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw" over:state];
  NSError *error = nil;
  XCTAssertFalse([session fromBufferWithValue:[self zeros:ORTTensorElementDataTypeFloat shape:@[ @7 ]]
                                        error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CopyBufferToParameters", @"7");
  XCTAssertFalse([session fromBufferWithValue:Nothing() error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument buffer: expected ORTValue, found nil");
  ORTValue *wrong = [self zeros:ORTTensorElementDataTypeFloat shape:@[ @3 ]];
  XCTAssertFalse([state updateParameterWithName:@"fc2.bias" value:wrong error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"UpdateParameter", @"fc2.bias");
  XCTAssertNil([state getParameterWithName:@"nothing" error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"GetParameter", @"nothing");
}

- (void)testObjectsThatWereNeverInitialized {
  NSError *error = nil;
  ORTTrainingSession *session = [self empty:[ORTTrainingSession class]];
  XCTAssertNil([session trainStepWithInputValues:[self batch:0 of:@"mlp_adamw"] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"null");
  XCTAssertNil([session getTrainInputNamesWithError:&error]);
  XCTAssertFalse([session lazyResetGradWithError:&error]);
  XCTAssertNil([session toBufferWithTrainable:YES error:&error]);
  XCTAssertNil([[self empty:[ORTCheckpoint class]] getParameterNamesWithError:&error]);
  XCTAssertFalse([[self empty:[ORTSessionOptions class]] setIntraOpNumThreads:1 error:&error]);
  XCTAssertFalse([[self empty:[ORTRunOptions class]] setTerminate:YES error:&error]);
  error = nil;
  XCTAssertNil([[self empty:[ORTValue class]] tensorDataWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"initialized ORTValue");
  XCTAssertNil([[self empty:[ORTValue class]] typeInfoWithError:&error]);
  XCTAssertNil([[self empty:[ORTValue class]] tensorTypeAndShapeInfoWithError:&error]);
  XCTAssertNotNil([self empty:[ORTEnv class]]);
  XCTAssertNil([[self empty:[ORTTensorTypeAndShapeInfo class]] shape]);
}

@end
