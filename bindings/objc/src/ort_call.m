#import "ort_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#import "ort_arc.h"
#import "ort_error.h"
#import "ort_value.h"

NSString *const ORTErrorDomain = @"onnxruntime";

void ORTFreeVariable(void *variable) { free(*(void **)variable); }

ORTOutputs ORTMakeOutputs(size_t count) {
  ORTOutputs outputs = {count, calloc(count, sizeof(OrtValue *))};
  return outputs;
}

void ORTFreeOutputs(ORTOutputs *outputs) {
  for (size_t i = 0; outputs->values != NULL && i < outputs->count; ++i) {
    if (outputs->values[i] != NULL) ORTGeneralTable()->ReleaseValue(outputs->values[i]);
  }
  free(outputs->values);
}

void ORTFreeNamedValues(ORTNamedValues *named) {
  free(named->names);
  free(named->values);
}

void ORTFreeMemory(void *memory) {
  if (memory != NULL) ORTAllocator()->Free(ORTAllocator(), memory);
}

static void ORTStore(const ORTCall *call, OrtErrorCode code, NSString *message) {
  if (call->error == NULL) return;
  *call->error = [NSError errorWithDomain:ORTErrorDomain
                                     code:(NSInteger)code
                                 userInfo:@{NSLocalizedDescriptionKey : message}];
}

BOOL ORTSucceeded(const ORTCall *call, OrtStatus *status) {
  if (status == NULL) return YES;
  const OrtApi *general = ORTGeneralTable();
  ORTStore(call, general->GetErrorCode(status), ORTTextCopying(general->GetErrorMessage(status)));
  general->ReleaseStatus(status);
  return NO;
}

BOOL ORTRefuse(const ORTCall *call, NSString *format, ...) {
  if (call->error == NULL) return NO;
  va_list values;
  va_start(values, format);
  NSString *why = ORT_AUTORELEASE([[NSString alloc] initWithFormat:format arguments:values]);
  va_end(values);
  ORTStore(call, ORT_INVALID_ARGUMENT,
           [NSString stringWithFormat:@"-[%@ %@]: %@", NSStringFromClass([call->receiver class]),
                                      NSStringFromSelector(call->selector), why]);
  return NO;
}

// The name of an argument, or of an element of it, in an error.
static NSString *ORTPlace(NSString *name, NSUInteger index) {
  if (index == NSNotFound) return [NSString stringWithFormat:@"argument %@", name];
  return [NSString stringWithFormat:@"argument %@, element %lu", name, (unsigned long)index];
}

static BOOL ORTCheck(const ORTCall *call, NSString *name, NSUInteger index, id object, Class cls) {
  if ([object isKindOfClass:cls]) return YES;
  return ORTRefuse(call, @"%@: expected %@, found %@", ORTPlace(name, index), NSStringFromClass(cls),
                   object == nil ? @"nil" : NSStringFromClass([object class]));
}

static BOOL ORTTextAt(const ORTCall *call, NSString *name, NSUInteger index, id text, const char **out) {
  if (!ORTCheck(call, name, index, text, [NSString class])) return NO;
  if (![text canBeConvertedToEncoding:NSUTF8StringEncoding]) {
    return ORTRefuse(call, @"%@: expected a string, found an unpaired surrogate in it",
                     ORTPlace(name, index));
  }
  const char *bytes = [text UTF8String];
  if (strlen(bytes) != [text lengthOfBytesUsingEncoding:NSUTF8StringEncoding]) {
    return ORTRefuse(call, @"%@: expected a string, found a null character in it", ORTPlace(name, index));
  }
  *out = bytes;
  return YES;
}

BOOL ORTTakeText(const ORTCall *call, NSString *name, id text, BOOL optional, const char **out) {
  *out = NULL;
  if (text == nil && optional) return YES;
  return ORTTextAt(call, name, NSNotFound, text, out);
}

// Memory for a number of elements; NULL for 0.
static void *ORTRoom(NSUInteger count, size_t size) { return calloc(count == 0 ? 1 : count, size); }

BOOL ORTTakeTexts(const ORTCall *call, NSString *name, id texts, BOOL optional, const char ***out) {
  if (texts == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, texts, [NSArray class])) return NO;
  *out = ORTRoom([texts count], sizeof **out);
  NSUInteger i = 0;
  for (id text in texts) {
    if (!ORTTextAt(call, name, i, text, &(*out)[i])) return NO;
    ++i;
  }
  return YES;
}

BOOL ORTTakeData(const ORTCall *call, NSString *name, id data, BOOL optional, const void **out) {
  if (data == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, data, [NSData class])) return NO;
  *out = [data bytes];
  return YES;
}

static BOOL ORTHandleAt(const ORTCall *call, NSString *name, NSUInteger index, id object, Class cls,
                        void **out) {
  if (!ORTCheck(call, name, index, object, cls)) return NO;
  id<ORTHandleOwner> owner = object;
  NSString *why = nil;
  *out = [owner handle];
  if (*out == NULL) {
    why = [NSString
        stringWithFormat:@"expected an initialized %@, found an uninitialized one", NSStringFromClass(cls)];
  } else if ([owner respondsToSelector:@selector(whyUnusable)]) {
    why = [owner whyUnusable];
  }
  if (why == nil) return YES;
  return ORTRefuse(call, @"%@: %@", ORTPlace(name, index), why);
}

BOOL ORTTakeHandle(const ORTCall *call, NSString *name, id object, Class cls, BOOL optional, void *out) {
  if (object == nil && optional) return YES;
  return ORTHandleAt(call, name, NSNotFound, object, cls, out);
}

BOOL ORTTakeValues(const ORTCall *call, NSString *name, id values, BOOL optional, const OrtValue ***out) {
  if (values == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, values, [NSArray class])) return NO;
  *out = ORTRoom([values count], sizeof **out);
  NSUInteger i = 0;
  Class cls = [ORTValue class];
  for (id value in values) {
    void *handle = NULL;
    if (!ORTHandleAt(call, name, i, value, cls, &handle)) return NO;
    (*out)[i] = handle;
    ++i;
  }
  return YES;
}

BOOL ORTTakeTextSet(const ORTCall *call, NSString *name, id texts, BOOL optional, const char ***out) {
  if (texts == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, texts, [NSSet class])) return NO;
  return ORTTakeTexts(call, name, [texts allObjects], NO, out);
}

BOOL ORTTakeNamedValues(const ORTCall *call, NSString *name, id values, BOOL optional, ORTNamedValues *out) {
  if (values == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, values, [NSDictionary class])) return NO;
  NSArray *keys = [values allKeys];
  out->count = [keys count];
  return ORTTakeTexts(call, name, keys, NO, &out->names) &&
         ORTTakeValues(call, name, [values objectsForKeys:keys notFoundMarker:[NSNull null]], NO,
                       &out -> values);
}

BOOL ORTCountElements(const ORTCall *call, const OrtValue *value, size_t *out) {
  const OrtApi *general = ORTGeneralTable();
  OrtTensorTypeAndShapeInfo *info = NULL;
  if (!ORTSucceeded(call, general->GetTensorTypeAndShape(value, &info))) return NO;
  OrtStatus *status = general->GetTensorShapeElementCount(info, out);
  general->ReleaseTensorTypeAndShapeInfo(info);
  return ORTSucceeded(call, status);
}

BOOL ORTRefuseProperty(const ORTCall *call, NSString *name, OrtPropertyType expected, OrtPropertyType found) {
  NSArray<NSString *> *kinds = @[ @"an integer", @"a float", @"a string" ];
  return ORTRefuse(call, @"property %@: expected %@, found %@", name, [kinds objectAtIndex:expected],
                   [kinds objectAtIndex:found]);
}

static size_t ORTSizeOf(const char *element) {
  NSUInteger size = 0;
  NSGetSizeAndAlignment(element, &size, NULL);
  return size;
}

// Stores a number as the element type; NO if it is not representable.
static BOOL ORTStoreNumber(NSNumber *number, const char *element, void *out) {
  const size_t size = ORTSizeOf(element);
  if (*element == *@encode(float)) {
    *(float *)out = [number floatValue];
    return YES;
  }
  if (*element == *@encode(double)) {
    *(double *)out = [number doubleValue];
    return YES;
  }
  if (*element == *@encode(bool)) {
    *(bool *)out = [number boolValue];
    return YES;
  }
  const double real = [number doubleValue];
  const BOOL is_real = strchr("fd", *[number objCType]) != NULL;
  if (is_real && !(fabs(real) < 0x1p63 && real == (double)(long long)real)) return NO;
  const long long whole = [number longLongValue];
  const BOOL is_signed = strchr("csilq", *element) != NULL;
  if (!is_signed && whole < 0) return NO;
  switch (size) {
    case 1:
      *(int8_t *)out = (int8_t)whole;
      return is_signed ? whole == (int8_t)whole : whole == (uint8_t)whole;
    case 4:
      *(int32_t *)out = (int32_t)whole;
      return is_signed ? whole == (int32_t)whole : whole == (uint32_t)whole;
    default:
      *(int64_t *)out = whole;
      return YES;
  }
}

static NSNumber *ORTNumber(const void *number, const char *element) {
  switch (*element) {
    case 'f':
      return @(*(const float *)number);
    case 'd':
      return @(*(const double *)number);
    case 'B':
      return @(*(const bool *)number);
    case 'i':
      return @(*(const int32_t *)number);
    case 'I':
      return @(*(const uint32_t *)number);
    case 'q':
    case 'l':
      return @(*(const int64_t *)number);
    default:
      return @(*(const uint64_t *)number);
  }
}

BOOL ORTTakeNumbers(const ORTCall *call, NSString *name, id numbers, BOOL optional, const char *element,
                    void *out) {
  if (numbers == nil && optional) return YES;
  if (!ORTCheck(call, name, NSNotFound, numbers, [NSArray class])) return NO;
  const size_t size = ORTSizeOf(element);
  char *room = ORTRoom([numbers count], size);
  *(void **)out = room;
  NSUInteger i = 0;
  for (id number in numbers) {
    if (!ORTCheck(call, name, i, number, [NSNumber class])) return NO;
    if (!ORTStoreNumber(number, element, room + i * size)) {
      return ORTRefuse(call, @"%@: expected a number that the type can represent, found %@",
                       ORTPlace(name, i), number);
    }
    ++i;
  }
  return YES;
}

NSString *ORTTextCopying(const char *text) {
  if (text == NULL) return @"";
  NSString *copy = ORT_AUTORELEASE([[NSString alloc] initWithUTF8String:text]);
  if (copy != nil) return copy;
  // Names come from files; bytes that are not UTF-8 are still shown.
  return ORT_AUTORELEASE([[NSString alloc] initWithCString:text encoding:NSISOLatin1StringEncoding]);
}

NSString *ORTTextTaking(char *text) {
  NSString *copy = ORTTextCopying(text);
  ORTFreeMemory(text);
  return copy;
}

NSData *ORTDataTaking(void *data, size_t size) {
  NSData *copy = [NSData dataWithBytes:data length:size];
  ORTFreeMemory(data);
  return copy;
}

id ORTObjectTaking(Class cls, void *handle) {
  return ORT_AUTORELEASE([(id<ORTHandleTaker>)[cls alloc] initWithHandle:handle]);
}

NSArray *ORTValuesTaking(ORTOutputs *outputs) {
  NSMutableArray *values = [NSMutableArray arrayWithCapacity:outputs->count];
  for (size_t i = 0; i < outputs->count; ++i) {
    OrtValue *handle = outputs->values[i];
    outputs->values[i] = NULL;
    [values addObject:ORTObjectTaking([ORTValue class], handle)];
  }
  return values;
}

NSArray<NSNumber *> *ORTNumbersCopying(const void *numbers, size_t count, const char *element) {
  NSMutableArray<NSNumber *> *copies = [NSMutableArray arrayWithCapacity:count];
  for (size_t i = 0; i < count; ++i) {
    [copies addObject:ORTNumber((const char *)numbers + i * ORTSizeOf(element), element)];
  }
  return copies;
}
