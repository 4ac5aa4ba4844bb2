// Tensors of strings, execution providers that are not there, and custom operators.
#import "support.h"

@interface StringTests : ORTTestCase
@end

@implementation StringTests

- (ORTValue *)strings:(NSArray<NSString *> *)strings
                shape:(NSArray<NSNumber *> *)shape
                error:(NSError **)error {
  return ORT_TEST_AUTORELEASED([[ORTValue alloc] initWithTensorStringData:strings shape:shape error:error]);
}

- (void)testStringsAreWhatTheyWere {
  NSError *error = nil;
  NSArray<NSString *> *strings =
      @[ @"one", @"", @"dr\u00e9i \u20ac", @"a string that is longer than the others" ];
  ORTValue *value = [self strings:strings shape:@[ @2, @2 ] error:&error];
  XCTAssertNotNil(value, @"%@", error);
  XCTAssertEqualObjects([value tensorStringDataWithError:&error], strings);
  ORTTensorTypeAndShapeInfo *info = [value tensorTypeAndShapeInfoWithError:&error];
  NSArray *shape = @[ @2, @2 ];
  XCTAssertEqualObjects([info shape], shape);
  XCTAssertEqual((int)[info elementType], (int)ORTTensorElementDataTypeString);
  XCTAssertEqualObjects([[self strings:@[] shape:@[ @0 ] error:&error] tensorStringDataWithError:&error],
                        @[]);
  XCTAssertEqualObjects([[self strings:@[ @"scalar" ] shape:@[]
                                 error:&error] tensorStringDataWithError:&error],
                        @[ @"scalar" ]);
  XCTAssertNil(error);
}

- (void)testWrongStringsSayWhatIsWrong {
  NSError *error = nil;
  XCTAssertNil([self strings:@[ @"one" ] shape:@[ @2 ] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"FillStringTensor");
  id not_strings = @[ @"one", @2 ], not_a_list = @"one";
  XCTAssertNil([self strings:not_strings shape:@[ @2 ] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"tensorStringData, element 1", @"NSString");
  XCTAssertNil([self strings:not_a_list shape:@[ @1 ] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"tensorStringData", @"NSArray");
  XCTAssertNil([self strings:@[ @"one" ] shape:@[ @(-1) ] error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"-1");
  ORTValue *numbers = [self zeros:ORTTensorElementDataTypeFloat shape:@[ @2 ]];
  XCTAssertNil([numbers tensorStringDataWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"string");
  ORTValue *text = [self strings:@[ @"one" ] shape:@[ @1 ] error:&error];
  XCTAssertNil([text tensorDataWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"string");
}

// A model that gives its input of strings back: Identity from x to y, as ONNX.
- (NSData *)identityOfStrings {
  const unsigned char bytes[] = {
      8, 8,   58, 57, 10, 16, 10,  1,  120, 18, 1,  121, 34, 8,  73,  100, 101, 110, 116, 105, 116, 121, 18,
      1, 103, 90, 16, 10, 1,  120, 18, 11,  10, 9,  8,   8,  18, 5,   10,  3,   18,  1,   110, 98,  16,  10,
      1, 121, 18, 11, 10, 9,  8,   8,  18,  5,  10, 3,   18, 1,  110, 66,  4,   10,  0,   16,  17,
  };
  return [NSData dataWithBytes:bytes length:sizeof bytes];
}

- (void)testASessionRunsOnStringsAfterItsEnvironmentAndOptionsAreGone {
  ORTSession *session = nil;
  NSError *error = nil;
  @autoreleasepool {
    ORTEnv *env = [[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelFatal error:NULL];
    ORTSessionOptions *options = [[ORTSessionOptions alloc] initWithError:NULL];
    session = [[ORTSession alloc] initWithEnv:env
                                    modelData:[self identityOfStrings]
                               sessionOptions:options
                                        error:&error];
    ORT_TEST_RELEASE(options);
    ORT_TEST_RELEASE(env);
  }
  XCTAssertNotNil(session, @"%@", error);
  NSArray<NSString *> *strings = @[ @"in", @"and out" ];
  ORTValue *x = [self strings:strings shape:@[ @2 ] error:NULL];
  NSDictionary<NSString *, ORTValue *> *outputs = [session runWithInputs:@{@"x" : x}
                                                             outputNames:[NSSet setWithObject:@"y"]
                                                              runOptions:nil
                                                                   error:&error];
  XCTAssertEqualObjects([[outputs objectForKey:@"y"] tensorStringDataWithError:&error], strings, @"%@",
                        error);
  ORT_TEST_RELEASE(session);
}

- (void)testAProviderThatIsMissingIsRefusedWithTheNamesOfThoseThatAreThere {
  XCTAssertFalse(ORTIsCoreMLExecutionProviderAvailable());
  ORTSessionOptions *options = [self options];
  NSError *error = nil;
  NSDictionary *settings = @{@"ModelFormat" : @"MLProgram"};
  XCTAssertFalse([options appendExecutionProvider:@"Toaster" providerOptions:@{} error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"Toaster", @"CPUExecutionProvider");
  XCTAssertFalse([options appendExecutionProvider:@"CoreML" providerOptions:settings error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CoreML", @"CPUExecutionProvider");
  ORTCoreMLExecutionProviderOptions *core_ml =
      ORT_TEST_AUTORELEASED([[ORTCoreMLExecutionProviderOptions alloc] init]);
  [core_ml setUseCPUOnly:YES];
  error = nil;
  XCTAssertFalse([options appendCoreMLExecutionProviderWithOptions:core_ml error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CoreML", @"CPUExecutionProvider");
  error = nil;
  XCTAssertFalse([options appendCoreMLExecutionProviderWithOptionsV2:settings error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CoreML", @"CPUExecutionProvider");
  ORTXnnpackExecutionProviderOptions *xnnpack =
      ORT_TEST_AUTORELEASED([[ORTXnnpackExecutionProviderOptions alloc] init]);
  error = nil;
  XCTAssertFalse([options appendXnnpackExecutionProviderWithOptions:xnnpack error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"XNNPACK", @"CPUExecutionProvider");
  id not_settings = @{@"ModelFormat" : @1};
  XCTAssertFalse([options appendExecutionProvider:@"CoreML" providerOptions:not_settings error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"providerOptions, element 0", @"NSString");
}

static const struct OrtApiBase *given;

static struct OrtStatus *RegisterNothing(struct OrtSessionOptions *options, const struct OrtApiBase *api) {
  given = options != NULL ? api : NULL;
  return NULL;
}

- (void)testFunctionsRegisterCustomOperators {
  ORTSessionOptions *options = [self options];
  NSError *error = nil;
  XCTAssertTrue([options registerCustomOpsUsingFunctionPointer:&RegisterNothing error:&error]);
  XCTAssertTrue(given != NULL);
  ORTCAPIRegisterCustomOpsFnPtr none = NULL;
  XCTAssertFalse([options registerCustomOpsUsingFunctionPointer:none error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"registerCustomOpsFn", @"NULL");
  XCTAssertFalse([options registerCustomOpsUsingFunction:@"NeverHeard" error:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"NeverHeard");
  XCTAssertFalse([options enableOrtExtensionsCustomOpsWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeFail, @"extensions");
}

@end
