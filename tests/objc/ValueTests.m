// Tensors: no copies, and memory that lives as long as something refers to it.
#import "support.h"

#include <stdlib.h>
#include <string.h>

static unsigned freed;

/** Data that counts its deallocations, and overwrites its memory then. */
@interface WatchedData : NSMutableData {
 @private
  unsigned char *_memory;
  NSUInteger _size;
}
- (instancetype)initWithSize:(NSUInteger)size;
@end

@implementation WatchedData

- (instancetype)initWithSize:(NSUInteger)size {
  if ((self = [super init])) {
    _memory = calloc(size, 1);
    _size = size;
  }
  return self;
}

- (instancetype)initWithBytesNoCopy:(void *)bytes length:(NSUInteger)length freeWhenDone:(BOOL)freeWhenDone {
  (void)bytes, (void)length, (void)freeWhenDone;
  return self;
}

- (void)dealloc {
  ++freed;
  memset(_memory, 0xFF, _size);
  free(_memory);
#ifndef ORT_TEST_ARC
  [super dealloc];
#endif
}

- (NSUInteger)length {
  return _size;
}

- (const void *)bytes {
  return _memory;
}

- (void *)mutableBytes {
  return _memory;
}

- (void)setLength:(NSUInteger)length {
  _size = length;
}

@end

@interface ValueTests : ORTTestCase
@end

@implementation ValueTests

- (void)setUp {
  [super setUp];
  freed = 0;
}

static ORTValue *MakeValue(NSMutableData *data, ORTTensorElementDataType type, NSArray *shape,
                           NSError **error) {
  return ORT_TEST_AUTORELEASED([[ORTValue alloc] initWithTensorData:data
                                                        elementType:type
                                                              shape:shape
                                                              error:error]);
}

- (void)testTypeAndShape {
  NSArray *shape = @[ @2, @0, @3 ];
  ORTValue *value = MakeValue([NSMutableData data], ORTTensorElementDataTypeInt64, shape, NULL);
  ORTTensorTypeAndShapeInfo *info = [value tensorTypeAndShapeInfoWithError:NULL];
  XCTAssertEqual((int)[info elementType], (int)ORTTensorElementDataTypeInt64);
  XCTAssertEqualObjects([info shape], shape);
  ORTValueTypeInfo *kind = [value typeInfoWithError:NULL];
  XCTAssertEqual((int)[kind type], (int)ORTValueTypeTensor);
  XCTAssertEqualObjects([[kind tensorTypeAndShapeInfo] shape], shape);
  XCTAssertEqual((int)[[kind tensorTypeAndShapeInfo] elementType], (int)ORTTensorElementDataTypeInt64);
  XCTAssertEqual([[value tensorDataWithError:NULL] length], (NSUInteger)0);

  ORTValue *scalar = MakeValue([NSMutableData dataWithLength:1], ORTTensorElementDataTypeBool, @[], NULL);
  XCTAssertEqualObjects([[scalar tensorTypeAndShapeInfoWithError:NULL] shape], @[]);
}

- (void)testATensorLiesInTheDataOfTheCaller {
  NSMutableData *data = [NSMutableData dataWithLength:3 * sizeof(float)];
  ORTValue *value = MakeValue(data, ORTTensorElementDataTypeFloat, @[ @3 ], NULL);
  XCTAssertTrue([[value tensorDataWithError:NULL] mutableBytes] == [data mutableBytes]);
  ((float *)[data mutableBytes])[1] = 5;
  XCTAssertEqual(((const float *)[[value tensorDataWithError:NULL] bytes])[1], 5.0f);

  // More data than elements: the tensor is the beginning of it.
  value = MakeValue(data, ORTTensorElementDataTypeFloat, @[ @2 ], NULL);
  NSMutableData *front = [value tensorDataWithError:NULL];
  XCTAssertEqual([front length], 2 * sizeof(float));
  XCTAssertTrue([front mutableBytes] == [data mutableBytes]);
}

- (void)testTheDataOfAnOutputIsTheOutput {
  ORTValue *buffer = [[self sessionOf:@"mlp_adamw"] toBufferWithTrainable:YES error:NULL];
  NSMutableData *data = [buffer tensorDataWithError:NULL];
  NSMutableData *again = [buffer tensorDataWithError:NULL];
  XCTAssertTrue([data mutableBytes] == [again mutableBytes]);
  ((float *)[data mutableBytes])[7] = 5;
  XCTAssertEqual(((const float *)[again bytes])[7], 5.0f);
}

- (void)testATensorKeepsItsDataAlive {
  @autoreleasepool {
    ORTValue *value = nil;
    @autoreleasepool {
      WatchedData *data = [[WatchedData alloc] initWithSize:8];
      ((float *)[data mutableBytes])[1] = 3;
      value = [[ORTValue alloc] initWithTensorData:data
                                       elementType:ORTTensorElementDataTypeFloat
                                             shape:@[ @2 ]
                                             error:NULL];
      ORT_TEST_RELEASE(data);
    }
    XCTAssertEqual(freed, 0u);
    XCTAssertEqual(((const float *)[[value tensorDataWithError:NULL] bytes])[1], 3.0f);
    ORT_TEST_RELEASE(value);
    value = nil;
  }
  XCTAssertEqual(freed, 1u);
}

- (void)testDataKeepsItsTensorAlive {
  @autoreleasepool {
    NSMutableData *front = nil;
    @autoreleasepool {
      WatchedData *data = [[WatchedData alloc] initWithSize:12];
      ((float *)[data mutableBytes])[1] = 3;
      front = ORT_TEST_RETAINED(
          [MakeValue(data, ORTTensorElementDataTypeFloat, @[ @2 ], NULL) tensorDataWithError:NULL]);
      ORT_TEST_RELEASE(data);
    }
    XCTAssertEqual(freed, 0u);
    XCTAssertEqual(((const float *)[front bytes])[1], 3.0f);
    ORT_TEST_RELEASE(front);
    front = nil;
  }
  XCTAssertEqual(freed, 1u);

  NSMutableData *data = nil;
  NSData *copy = nil;
  @autoreleasepool {
    ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
    data = ORT_TEST_RETAINED([[session toBufferWithTrainable:NO error:NULL] tensorDataWithError:NULL]);
    copy = ORT_TEST_RETAINED([NSData dataWithBytes:[data bytes] length:[data length]]);
  }
  XCTAssertEqualObjects(data, copy);
  ((float *)[data mutableBytes])[0] = 17;
  XCTAssertEqual(((const float *)[data bytes])[0], 17.0f);
  ORT_TEST_RELEASE(data);
  ORT_TEST_RELEASE(copy);
}

- (void)testInputsLiveNoLongerThanTheStep {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  @autoreleasepool {
    WatchedData *x = [[WatchedData alloc] initWithSize:64 * sizeof(float)];
    WatchedData *y = [[WatchedData alloc] initWithSize:sizeof(int64_t)];
    NSArray *inputs = @[
      MakeValue(x, ORTTensorElementDataTypeFloat, (@[ @1, @64 ]), NULL),
      MakeValue(y, ORTTensorElementDataTypeInt64, @[ @1 ], NULL)
    ];
    XCTAssertNotNil([session trainStepWithInputValues:inputs error:NULL]);
    ORT_TEST_RELEASE(x);
    ORT_TEST_RELEASE(y);
  }
  XCTAssertEqual(freed, 2u);
  XCTAssertTrue([session optimizerStepWithError:NULL]);
}

- (void)testTheLengthOfATensorsDataStays {
  NSMutableData *data = [[[self sessionOf:@"mlp_adamw"] toBufferWithTrainable:YES
                                                                        error:NULL] tensorDataWithError:NULL];
  const NSUInteger length = [data length];
  [data setLength:length];
  XCTAssertThrowsSpecificNamed([data setLength:length + 1], NSException, NSInvalidArgumentException);
  XCTAssertThrowsSpecificNamed([data setLength:0], NSException, NSInvalidArgumentException);
  XCTAssertThrowsSpecificNamed([data appendBytes:"abc" length:3], NSException, NSInvalidArgumentException);
  XCTAssertThrowsSpecificNamed([data increaseLengthBy:4], NSException, NSInvalidArgumentException);
  XCTAssertEqual([data length], length);
  [data replaceBytesInRange:NSMakeRange(4, 4) withBytes:"abcd"];
  XCTAssertEqual(memcmp((const char *)[data bytes] + 4, "abcd", 4), 0);
  [data resetBytesInRange:NSMakeRange(4, 4)];
  XCTAssertEqual(((const float *)[data bytes])[1], 0.0f);

  NSMutableData *copy = ORT_TEST_AUTORELEASED([data mutableCopy]);
  [copy setLength:length + 1];
  [copy setLength:length];
  XCTAssertEqualObjects(copy, data);
  ((char *)[copy mutableBytes])[0] ^= 1;
  XCTAssertFalse([copy isEqualToData:data]);
  NSData *constant = ORT_TEST_AUTORELEASED([data copy]);
  ((char *)[data mutableBytes])[0] ^= 1;
  XCTAssertFalse([constant isEqualToData:data]);
  XCTAssertEqualObjects(NSStringFromClass([data classForCoder]), @"NSMutableData", @"as it is archived");
}

- (void)testATensorWhoseDataHasMovedIsRefused {
  ORTTrainingSession *session = [self sessionOf:@"mlp_adamw"];
  NSMutableData *data = [NSMutableData dataWithLength:64 * sizeof(float)];
  ORTValue *x = MakeValue(data, ORTTensorElementDataTypeFloat, (@[ @1, @64 ]), NULL);
  ORTValue *y = [self zeros:ORTTensorElementDataTypeInt64 shape:@[ @1 ]];
  NSArray *inputs = @[ x, y ];
  XCTAssertNotNil([session trainStepWithInputValues:inputs error:NULL]);
  NSMutableData *mine = [x tensorDataWithError:NULL];
  [data setLength:4];
  NSError *error = nil;
  XCTAssertNil([session trainStepWithInputValues:inputs error:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument inputs, element 0", @"expected 256 bytes",
                @"found 4");
  XCTAssertNil([x tensorDataWithError:&error]);
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"moved or resized", @"expected 256 bytes", @"found 4");
  XCTAssertEqual([mine length], (NSUInteger)4, @"what was handed out is the caller's data");
}

- (void)testWrongArguments {
  NSMutableData *data = [NSMutableData dataWithLength:8];
  id nothing = nil;
  NSError *error = nil;
  XCTAssertNil(MakeValue(nothing, ORTTensorElementDataTypeFloat, @[ @2 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument,
                @"-[ORTValue initWithTensorData:elementType:shape:error:]", @"argument tensorData",
                @"found nil");
  XCTAssertNil(MakeValue((id) @"text", ORTTensorElementDataTypeFloat, @[ @2 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument tensorData");
  XCTAssertNil(MakeValue((id)[NSData dataWithData:data], ORTTensorElementDataTypeFloat, @[ @2 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument tensorData: expected NSMutableData");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, nothing, &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument shape: expected NSArray, found nil");
  NSArray *texts = @[ @2, @"2" ];
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, texts, &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument shape, element 1: expected NSNumber");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @1.5 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument shape, element 0", @"1.5");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @NAN ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument shape, element 0");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @1e30 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"argument shape, element 0");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @(-2) ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"-2");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @3 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"12 bytes", @"8");
  NSArray *huge = @[ @INT64_MAX, @INT64_MAX ];
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeFloat, huge, &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"CreateTensorWithDataAsOrtValue");
  XCTAssertNil(MakeValue(data, ORTTensorElementDataTypeString, @[ @1 ], &error));
  XCTAssertSays(error, ORTErrorCodeInvalidArgument, @"string");
  XCTAssertNil(MakeValue(data, (ORTTensorElementDataType)99, @[ @1 ], &error));
  XCTAssertSays(error, ORTErrorCodeNotImplemented, @"99");
  XCTAssertNotNil(MakeValue(data, ORTTensorElementDataTypeFloat, @[ @2.0 ], NULL), @"2.0 is a whole number");
}

@end
