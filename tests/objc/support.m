#import "support.h"

@implementation ORTTestCase

- (void)setUp {
  [super setUp];
  NSString *name =
      [@"ortrain-test-" stringByAppendingString:[[NSProcessInfo processInfo] globallyUniqueString]];
  _scratch = ORT_TEST_RETAINED([NSTemporaryDirectory() stringByAppendingPathComponent:name]);
  [[NSFileManager defaultManager] createDirectoryAtPath:_scratch
                            withIntermediateDirectories:YES
                                             attributes:nil
                                                  error:NULL];
  _env = [[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelFatal error:NULL];
  XCTAssertNotNil(_env);
}

- (void)tearDown {
  [[NSFileManager defaultManager] removeItemAtPath:_scratch error:NULL];
  ORT_TEST_RELEASE(_scratch);
  ORT_TEST_RELEASE(_env);
  _scratch = nil;
  _env = nil;
  [super tearDown];
}

- (ORTEnv *)env {
  return _env;
}

- (NSString *)scratch:(NSString *)name {
  return [_scratch stringByAppendingPathComponent:name];
}

- (NSString *)file:(NSString *)name of:(NSString *)run {
  return [[@TEST_RUNS stringByAppendingPathComponent:run] stringByAppendingPathComponent:name];
}

- (NSDictionary *)recordOf:(NSString *)run {
  NSData *text = [NSData dataWithContentsOfFile:[self file:@"run.json" of:run]];
  XCTAssertNotNil(text, @"the recorded runs were not prepared: tests/objc/prepare.py");
  return [NSJSONSerialization JSONObjectWithData:text options:0 error:NULL];
}

- (ORTValue *)tensor:(NSString *)name of:(NSString *)run {
  NSDictionary *array = [[[self recordOf:run] objectForKey:@"arrays"] objectForKey:name];
  NSString *file = [self file:[name stringByAppendingPathExtension:@"bin"] of:run];
  const BOOL is_float = [[array objectForKey:@"type"] isEqual:@"float"];
  NSError *error = nil;
  ORTValue *value = [[ORTValue alloc]
      initWithTensorData:[NSMutableData dataWithContentsOfFile:file]
             elementType:is_float ? ORTTensorElementDataTypeFloat : ORTTensorElementDataTypeInt64
                   shape:[array objectForKey:@"shape"]
                   error:&error];
  XCTAssertNotNil(value, @"%@: %@", file, error);
  return ORT_TEST_AUTORELEASED(value);
}

- (NSArray<ORTValue *> *)batch:(NSUInteger)step of:(NSString *)run {
  NSString *x = [NSString stringWithFormat:@"x%lu", (unsigned long)step];
  NSString *y = [NSString stringWithFormat:@"y%lu", (unsigned long)step];
  return @[ [self tensor:x of:run], [self tensor:y of:run] ];
}

- (ORTCheckpoint *)stateOf:(NSString *)run {
  NSError *error = nil;
  ORTCheckpoint *state = [[ORTCheckpoint alloc] initWithPath:[self file:@"checkpoint" of:run] error:&error];
  XCTAssertNotNil(state, @"%@", error);
  return ORT_TEST_AUTORELEASED(state);
}

- (ORTSessionOptions *)options {
  return ORT_TEST_AUTORELEASED([[ORTSessionOptions alloc] initWithError:NULL]);
}

- (ORTTrainingSession *)sessionOf:(NSString *)run {
  return [self sessionOf:run over:[self stateOf:run]];
}

- (ORTTrainingSession *)sessionOf:(NSString *)run over:(ORTCheckpoint *)state {
  NSError *error = nil;
  ORTTrainingSession *session =
      [[ORTTrainingSession alloc] initWithEnv:_env
                               sessionOptions:[self options]
                                   checkpoint:state
                               trainModelPath:[self file:@"training_model.onnx" of:run]
                                evalModelPath:[self file:@"eval_model.onnx" of:run]
                           optimizerModelPath:[self file:@"optimizer_model.onnx" of:run]
                                        error:&error];
  XCTAssertNotNil(session, @"%@", error);
  return ORT_TEST_AUTORELEASED(session);
}

- (ORTValue *)zeros:(ORTTensorElementDataType)type shape:(NSArray<NSNumber *> *)shape {
  NSUInteger bytes = 8;
  for (NSNumber *dim in shape) bytes *= [dim unsignedIntegerValue];
  ORTValue *value = [[ORTValue alloc] initWithTensorData:[NSMutableData dataWithLength:bytes]
                                             elementType:type
                                                   shape:shape
                                                   error:NULL];
  XCTAssertNotNil(value);
  return ORT_TEST_AUTORELEASED(value);
}

- (float)scalar:(ORTValue *)value {
  NSData *data = [value tensorDataWithError:NULL];
  float number = NAN;
  XCTAssertEqual([data length], sizeof number);
  if ([data length] == sizeof number) [data getBytes:&number length:sizeof number];
  return number;
}

@end

@implementation ORTTestCase (Errors)

- (void)check:(NSError *)error
         code:(ORTErrorCode)code
        words:(NSArray<NSString *> *)words
         file:(const char *)file
         line:(int)line {
  NSString *said = [error localizedDescription];
  if (error == nil || ![[error domain] isEqual:ORTErrorDomain] || [error code] != code) {
    XCTFail(@"%s:%d: expected an error of code %d, found %@ %ld: %@", file, line, (int)code, [error domain],
            (long)[error code], said);
  }
  for (NSString *word in words) {
    if ([said rangeOfString:word].location == NSNotFound) {
      XCTFail(@"%s:%d: expected an error that says %@, found: %@", file, line, word, said);
    }
  }
}

@end
