#import "ort_value.h"

#include <stdlib.h>

#import "ort_arc.h"
#import "ort_call.h"
#import "ort_tensor_data.h"

@interface ORTValue () <ORTHandleOwner, ORTHandleTaker>
@end

@interface ORTValueTypeInfo () <ORTHandleTaker>
@end

@interface ORTTensorTypeAndShapeInfo () <ORTHandleTaker>
- (instancetype)initWithBorrowedHandle:(const OrtTensorTypeAndShapeInfo *)handle;
@end

@implementation ORTValue

// The address of the data that the tensor gets. Empty data has a null pointer, which a tensor may not have.
static void *ORTBytesOf(NSMutableData *data) {
  static char none;
  return [data length] == 0 ? &none : [data mutableBytes];
}

- (instancetype)initWithTensorData:(NSMutableData *)tensorData
                       elementType:(ORTTensorElementDataType)elementType
                             shape:(NSArray<NSNumber *> *)shape
                             error:(NSError **)error {
  if ((self = [super init])) {
    const ORTCall call = {self, _cmd, error};
    if (![self readTensorData:tensorData elementType:elementType shape:shape call:&call]) {
      ORT_RELEASE(self);
      return nil;
    }
  }
  return self;
}

- (BOOL)readTensorData:(NSMutableData *)tensorData
           elementType:(ORTTensorElementDataType)elementType
                 shape:(NSArray<NSNumber *> *)shape
                  call:(const ORTCall *)call {
  const void *bytes = NULL;
  if (!ORTTakeData(call, @"tensorData", tensorData, NO, &bytes)) return NO;
  // A step may write into a tensor, so data that is not mutable is rejected.
  if (![tensorData isKindOfClass:[NSMutableData class]]) {
    return ORTRefuse(call, @"argument tensorData: expected NSMutableData, found %@",
                     NSStringFromClass([tensorData class]));
  }
  int64_t *dims ORT_FREED = NULL;
  if (!ORTTakeNumbers(call, @"shape", shape, NO, @encode(int64_t), &dims)) return NO;

  const OrtApi *general = ORTGeneralTable();
  OrtMemoryInfo *memory = NULL;
  if (!ORTSucceeded(call, general->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory)))
    return NO;
  _tensorBytes = ORTBytesOf(tensorData);
  OrtStatus *status =
      general->CreateTensorWithDataAsOrtValue(memory, _tensorBytes, [tensorData length], dims, [shape count],
                                              (ONNXTensorElementDataType)elementType, &_handle);
  general->ReleaseMemoryInfo(memory);
  if (!ORTSucceeded(call, status)) return NO;
  size_t size = 0;
  if (!ORTSucceeded(call, general->GetTensorSizeInBytes(_handle, &size))) return NO;
  _tensorSize = size;
  _tensorData = ORT_RETAIN(tensorData);
  return YES;
}

- (instancetype)initWithTensorStringData:(NSArray<NSString *> *)tensorStringData
                                   shape:(NSArray<NSNumber *> *)shape
                                   error:(NSError **)error {
  if ((self = [super init])) {
    const ORTCall call = {self, _cmd, error};
    if (![self readStrings:tensorStringData shape:shape call:&call]) {
      ORT_RELEASE(self);
      return nil;
    }
  }
  return self;
}

- (BOOL)readStrings:(NSArray<NSString *> *)strings
              shape:(NSArray<NSNumber *> *)shape
               call:(const ORTCall *)call {
  const char **texts ORT_FREED = NULL;
  if (!ORTTakeTexts(call, @"tensorStringData", strings, NO, &texts)) return NO;
  int64_t *dims ORT_FREED = NULL;
  if (!ORTTakeNumbers(call, @"shape", shape, NO, @encode(int64_t), &dims)) return NO;
  const OrtApi *general = ORTGeneralTable();
  return ORTSucceeded(call,
                      general->CreateTensorAsOrtValue(ORTAllocator(), dims, [shape count],
                                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &_handle)) &&
         ORTSucceeded(call, general->FillStringTensor(_handle, texts, [strings count]));
}

- (instancetype)initWithHandle:(void *)handle {
  if ((self = [super init])) {
    _handle = handle;
  } else {
    ORTGeneralTable()->ReleaseValue(handle);
  }
  return self;
}

- (void)dealloc {
  if (_handle != NULL) ORTGeneralTable()->ReleaseValue(_handle);
  ORT_RELEASE(_tensorData);
  ORT_DEALLOC_SUPER();
}

- (void *)handle {
  return _handle;
}

- (NSString *)whyUnusable {
  if (_tensorData == nil) return nil;
  const NSUInteger length = [_tensorData length];
  if (length >= _tensorSize && ORTBytesOf(_tensorData) == _tensorBytes) return nil;
  return [NSString stringWithFormat:@"the data of the tensor was moved or resized, expected %lu bytes at the "
                                    @"same address, found %lu",
                                    (unsigned long)_tensorSize, (unsigned long)length];
}

// NO with an error for a tensor that is not initialized or whose data has moved.
- (BOOL)checkForCall:(const ORTCall *)call {
  OrtValue *handle = NULL;
  return ORTTakeHandle(call, @"self", self, [ORTValue class], NO, &handle);
}

- (ORTValueTypeInfo *)typeInfoWithError:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  OrtTypeInfo *info = NULL;
  if (!ORTSucceeded(&call, ORTGeneralTable()->GetTypeInfo(_handle, &info))) return nil;
  return ORTObjectTaking([ORTValueTypeInfo class], info);
}

- (ORTTensorTypeAndShapeInfo *)tensorTypeAndShapeInfoWithError:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  OrtTensorTypeAndShapeInfo *info = NULL;
  if (!ORTSucceeded(&call, ORTGeneralTable()->GetTensorTypeAndShape(_handle, &info))) return nil;
  return ORTObjectTaking([ORTTensorTypeAndShapeInfo class], info);
}

- (NSMutableData *)tensorDataWithError:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  if (![self checkForCall:&call]) return nil;
  // The caller's own data stays valid even when its length is changed afterwards.
  if (_tensorData != nil && [_tensorData length] == _tensorSize)
    return ORT_AUTORELEASE(ORT_RETAIN(_tensorData));
  void *bytes = NULL;
  size_t size = 0;
  if (!ORTSucceeded(&call, ORTGeneralTable()->GetTensorMutableData(_handle, &bytes))) return nil;
  if (!ORTSucceeded(&call, ORTGeneralTable()->GetTensorSizeInBytes(_handle, &size))) return nil;
  return ORT_AUTORELEASE([[ORTTensorData alloc] initWithValue:self bytes:bytes length:size]);
}

- (NSArray<NSString *> *)tensorStringDataWithError:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  const OrtApi *general = ORTGeneralTable();
  OrtTensorTypeAndShapeInfo *info = NULL;
  if (!ORTSucceeded(&call, general->GetTensorTypeAndShape(_handle, &info))) return nil;
  size_t count = 0, length = 0;
  OrtStatus *counted = general->GetTensorShapeElementCount(info, &count);
  general->ReleaseTensorTypeAndShapeInfo(info);
  if (!ORTSucceeded(&call, counted)) return nil;
  if (!ORTSucceeded(&call, general->GetStringTensorDataLength(_handle, &length))) return nil;
  // One more than the strings: every string ends where the next begins, and there is memory even for no
  // strings.
  char *bytes ORT_FREED = malloc(length + 1);
  size_t *offsets ORT_FREED = calloc(count + 1, sizeof *offsets);
  if (!ORTSucceeded(&call, general->GetStringTensorContent(_handle, bytes, length, offsets, count)))
    return nil;
  offsets[count] = length;
  NSMutableArray<NSString *> *strings = [NSMutableArray arrayWithCapacity:count];
  for (size_t i = 0; i < count; ++i) {
    NSString *text = [[NSString alloc] initWithBytes:bytes + offsets[i]
                                              length:offsets[i + 1] - offsets[i]
                                            encoding:NSUTF8StringEncoding];
    if (text == nil) {
      ORTRefuse(&call, @"element %lu of the tensor is not UTF-8", (unsigned long)i);
      return nil;
    }
    [strings addObject:ORT_AUTORELEASE(text)];
  }
  return strings;
}

@end

@implementation ORTValueTypeInfo

@synthesize type = _type;
@synthesize tensorTypeAndShapeInfo = _tensorTypeAndShapeInfo;

- (instancetype)initWithHandle:(void *)handle {
  if ((self = [super init])) {
    const OrtApi *general = ORTGeneralTable();
    ONNXType type = ONNX_TYPE_UNKNOWN;
    general->ReleaseStatus(general->GetOnnxTypeFromTypeInfo(handle, &type));
    _type = (ORTValueType)type;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    general->ReleaseStatus(general->CastTypeInfoToTensorInfo(handle, &tensor));
    if (tensor != NULL)
      _tensorTypeAndShapeInfo = [[ORTTensorTypeAndShapeInfo alloc] initWithBorrowedHandle:tensor];
  }
  ORTGeneralTable()->ReleaseTypeInfo(handle);
  return self;
}

- (void)dealloc {
  ORT_RELEASE(_tensorTypeAndShapeInfo);
  ORT_DEALLOC_SUPER();
}

@end

@implementation ORTTensorTypeAndShapeInfo

@synthesize elementType = _elementType;
@synthesize shape = _shape;

- (instancetype)initWithBorrowedHandle:(const OrtTensorTypeAndShapeInfo *)handle {
  if ((self = [super init])) {
    const OrtApi *general = ORTGeneralTable();
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    general->ReleaseStatus(general->GetTensorElementType(handle, &type));
    _elementType = (ORTTensorElementDataType)type;
    size_t rank = 0;
    general->ReleaseStatus(general->GetDimensionsCount(handle, &rank));
    int64_t *dims ORT_FREED = calloc(rank + 1, sizeof *dims);
    general->ReleaseStatus(general->GetDimensions(handle, dims, rank));
    _shape = ORT_RETAIN(ORTNumbersCopying(dims, rank, @encode(int64_t)));
  }
  return self;
}

- (instancetype)initWithHandle:(void *)handle {
  self = [self initWithBorrowedHandle:handle];
  ORTGeneralTable()->ReleaseTensorTypeAndShapeInfo(handle);
  return self;
}

- (void)dealloc {
  ORT_RELEASE(_shape);
  ORT_DEALLOC_SUPER();
}

@end
