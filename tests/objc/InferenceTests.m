// A forward session returns what the eval step of the session that exported its model returned.
#import "support.h"

@interface InferenceTests : ORTTestCase
@end

@implementation InferenceTests

static NSString *const kRun = @"mlp_adamw";

// Exports the eval model of a recorded run; returns the path, and the names of inputs and loss.
- (NSString *)exportWithInputs:(NSArray<NSString *> **)inputs loss:(NSString **)loss value:(float *)value {
  NSString *path = [self scratch:@"model.onnx"];
  ORTTrainingSession *session = [self sessionOf:kRun];
  *inputs = [session getEvalInputNamesWithError:NULL];
  *loss = [[session getEvalOutputNamesWithError:NULL] objectAtIndex:0];
  XCTAssertTrue([session exportModelForInferenceWithOutputPath:path graphOutputNames:@[ *loss ] error:NULL]);
  NSArray<ORTValue *> *outputs = [session evalStepWithInputValues:[self batch:0 of:kRun] error:NULL];
  *value = [self scalar:[outputs objectAtIndex:0]];
  return path;
}

- (ORTSession *)sessionAt:(NSString *)path {
  NSError *error = nil;
  ORTSession *session = [[ORTSession alloc] initWithEnv:[self env]
                                              modelPath:path
                                         sessionOptions:nil
                                                  error:&error];
  XCTAssertNotNil(session, @"%@", error);
  return ORT_TEST_AUTORELEASED(session);
}

- (void)testRunsGiveWhatTheEvalStepGave {
  NSArray<NSString *> *names = nil;
  NSString *loss = nil;
  float expected = 0;
  NSString *path = [self exportWithInputs:&names loss:&loss value:&expected];
  NSDictionary *inputs = [NSDictionary dictionaryWithObjects:[self batch:0 of:kRun] forKeys:names];
  ORTSession *from_data = [[ORTSession alloc] initWithEnv:[self env]
                                                modelData:[NSData dataWithContentsOfFile:path]
                                           sessionOptions:[self options]
                                                    error:NULL];
  ORTRunOptions *options = ORT_TEST_AUTORELEASED([[ORTRunOptions alloc] initWithError:NULL]);
  for (ORTSession *session in @[ [self sessionAt:path], ORT_TEST_AUTORELEASED(from_data) ]) {
    NSError *error = nil;
    NSDictionary<NSString *, ORTValue *> *outputs = [session runWithInputs:inputs
                                                               outputNames:[NSSet setWithObject:loss]
                                                                runOptions:options
                                                                     error:&error];
    XCTAssertEqualObjects([outputs allKeys], @[ loss ], @"%@", error);
    XCTAssertEqual([self scalar:[outputs objectForKey:loss]], expected);

    ORTValue *room = [self zeros:ORTTensorElementDataTypeFloat shape:@[]];
    XCTAssertTrue([session runWithInputs:inputs outputs:@{loss : room} runOptions:nil error:&error]);
    float found = 0;
    [[room tensorDataWithError:NULL] getBytes:&found length:sizeof found];
    XCTAssertEqual(found, expected);
    XCTAssertNil(error);
  }
}

- (void)testTheModelSaysWhatItTakesAndGives {
  NSArray<NSString *> *names = nil;
  NSString *loss = nil;
  float value = 0;
  ORTSession *session = [self sessionAt:[self exportWithInputs:&names loss:&loss value:&value]];
  NSError *error = nil;
  XCTAssertEqualObjects([session inputNamesWithError:&error], names);
  XCTAssertEqualObjects([session outputNamesWithError:&error], @[ loss ]);
  XCTAssertEqualObjects([session overridableInitializerNamesWithError:&error], @[]);
  XCTAssertNil(error);
  ORTValueTypeInfo *info = [session inputTypeInfoAtIndex:0 error:&error];
  XCTAssertEqual([info type], ORTValueTypeTensor);
  XCTAssertEqual([[info tensorTypeAndShapeInfo] elementType], ORTTensorElementDataTypeFloat);
  NSArray<NSNumber *> *batch =
      [[[[self batch:0 of:kRun] objectAtIndex:0] tensorTypeAndShapeInfoWithError:NULL] shape];
  NSArray<NSNumber *> *open = @[ @(-1), [batch objectAtIndex:1] ];
  XCTAssertEqualObjects([[info tensorTypeAndShapeInfo] shape], open);
  info = [session outputTypeInfoAtIndex:0 error:&error];
  XCTAssertEqualObjects([[info tensorTypeAndShapeInfo] shape], @[]);
  XCTAssertNil([session inputTypeInfoAtIndex:2 error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"number 2", @"below 2");
}

- (void)testWrongRunsSayWhatIsWrong {
  NSArray<NSString *> *names = nil;
  NSString *loss = nil;
  float value = 0;
  ORTSession *session = [self sessionAt:[self exportWithInputs:&names loss:&loss value:&value]];
  NSArray<ORTValue *> *batch = [self batch:0 of:kRun];
  NSDictionary *inputs = [NSDictionary dictionaryWithObjects:batch forKeys:names];
  NSSet *wanted = [NSSet setWithObject:loss];
  NSError *error = nil;

  NSDictionary *missing = @{[names objectAtIndex:0] : [batch objectAtIndex:0]};
  XCTAssertNil([session runWithInputs:missing outputNames:wanted runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, [names objectAtIndex:1], @"not given");

  NSDictionary *other = @{@"other" : [batch objectAtIndex:0]};
  XCTAssertNil([session runWithInputs:other outputNames:wanted runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"no input 'other'", [names objectAtIndex:0]);

  NSSet *nothing = [NSSet setWithObject:@"nothing"];
  XCTAssertNil([session runWithInputs:inputs outputNames:nothing runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"no output 'nothing'", loss);

  ORTValue *wrong = [self zeros:ORTTensorElementDataTypeFloat shape:@[ @2 ]];
  XCTAssertFalse([session runWithInputs:inputs outputs:@{loss : wrong} runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, loss, @"float32[2]");

  id not_a_set = @[ loss ], not_values = @{[names objectAtIndex:0] : @"text"};
  XCTAssertNil([session runWithInputs:inputs outputNames:not_a_set runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"outputNames", @"NSSet");
  XCTAssertNil([session runWithInputs:not_values outputNames:wanted runOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"inputs, element 0", @"ORTValue");

  ORTRunOptions *ended = ORT_TEST_AUTORELEASED([[ORTRunOptions alloc] initWithError:NULL]);
  XCTAssertTrue([ended setTerminate:YES error:NULL]);
  XCTAssertNil([session runWithInputs:inputs outputNames:wanted runOptions:ended error:&error]);
  XCTAssertNotNil([session runWithInputs:inputs outputNames:wanted runOptions:nil error:NULL]);
}

- (void)testGradientsAreThereWithoutATrainingSession {
  NSArray<NSString *> *names = nil;
  NSString *loss = nil;
  float expected = 0;
  NSData *model = [NSData dataWithContentsOfFile:[self exportWithInputs:&names loss:&loss value:&expected]];
  NSError *error = nil;
  ORTGradientGraphBuilder *builder =
      ORT_TEST_AUTORELEASED([[ORTGradientGraphBuilder alloc] initWithModel:model
                                                                yNodeNames:@[ loss ]
                                                                xNodeNames:@[ [names objectAtIndex:0] ]
                                                              lossNodeName:loss
                                                                     error:&error]);
  XCTAssertNil([builder getModelWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"build first");
  XCTAssertTrue([builder buildWithError:&error]);
  NSString *path = [self scratch:@"gradients.onnx"];
  XCTAssertTrue([builder saveToPath:path error:&error]);
  XCTAssertEqualObjects([builder getModelWithError:&error], [NSData dataWithContentsOfFile:path]);

  NSArray<ORTValue *> *batch = [self batch:0 of:kRun];
  NSDictionary *inputs = [NSDictionary dictionaryWithObjects:batch forKeys:names];
  NSString *gradient = [[names objectAtIndex:0] stringByAppendingString:@"_grad"];
  NSDictionary<NSString *, ORTValue *> *outputs =
      [[self sessionAt:path] runWithInputs:inputs
                               outputNames:[NSSet setWithObjects:loss, gradient, nil]
                                runOptions:nil
                                     error:NULL];
  XCTAssertEqualWithAccuracy([self scalar:[outputs objectForKey:loss]], expected, 1e-5);
  XCTAssertEqualObjects([[[outputs objectForKey:gradient] tensorTypeAndShapeInfoWithError:NULL] shape],
                        [[[batch objectAtIndex:0] tensorTypeAndShapeInfoWithError:NULL] shape]);

  XCTAssertNil([[ORTGradientGraphBuilder alloc] initWithModel:model
                                                   yNodeNames:@[]
                                                   xNodeNames:names
                                                 lossNodeName:loss
                                                        error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"found none");
}

- (void)testModelsThatCannotBeReadAreRefused {
  NSError *error = nil;
  XCTAssertNil([[ORTSession alloc] initWithEnv:[self env]
                                     modelPath:[self scratch:@"missing"]
                                sessionOptions:nil
                                         error:&error]);
  XCTAssertSays(error, ORTErrorCodeNoSuchFile, @"missing");
  NSData *text = [@"no model" dataUsingEncoding:NSUTF8StringEncoding];
  XCTAssertNil([[ORTSession alloc] initWithEnv:[self env] modelData:text sessionOptions:nil error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidProtobuf);
}

// A run no longer needs the session options or the first reference to the environment.
- (void)testOutputsOutliveTheirSession {
  NSArray<NSString *> *names = nil;
  NSString *loss = nil;
  float expected = 0;
  NSString *path = [self exportWithInputs:&names loss:&loss value:&expected];
  NSDictionary *outputs = nil;
  @autoreleasepool {
    NSDictionary *inputs = [NSDictionary dictionaryWithObjects:[self batch:0 of:kRun] forKeys:names];
    outputs = ORT_TEST_RETAINED([[self sessionAt:path] runWithInputs:inputs
                                                         outputNames:[NSSet setWithObject:loss]
                                                          runOptions:nil
                                                               error:NULL]);
  }
  XCTAssertEqual([self scalar:[outputs objectForKey:loss]], expected);
  ORT_TEST_RELEASE(outputs);
}

@end
