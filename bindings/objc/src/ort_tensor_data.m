#import "ort_tensor_data.h"

#import "ort_arc.h"

@implementation ORTTensorData

- (instancetype)initWithValue:(ORTValue *)value bytes:(void *)bytes length:(NSUInteger)length {
  if ((self = [super init])) {
    _value = ORT_RETAIN(value);
    _bytes = bytes;
    _length = length;
  }
  return self;
}

// Some implementations of Foundation create empty data of a subclass through this method; there is nothing to
// create here.
- (instancetype)initWithBytesNoCopy:(void *)bytes length:(NSUInteger)length freeWhenDone:(BOOL)freeWhenDone {
  (void)bytes, (void)length, (void)freeWhenDone;
  return self;
}

- (void)dealloc {
  ORT_RELEASE(_value);
  ORT_DEALLOC_SUPER();
}

- (NSUInteger)length {
  return _length;
}

- (const void *)bytes {
  return _bytes;
}

- (void *)mutableBytes {
  return _bytes;
}

- (void)setLength:(NSUInteger)length {
  if (length == _length) return;
  [NSException
       raise:NSInvalidArgumentException
      format:@"-[NSMutableData setLength:]: the data belongs to a tensor, expected its length of %lu bytes, "
             @"found %lu",
             (unsigned long)_length, (unsigned long)length];
}

// An archive stores this data like any other data.
- (Class)classForCoder {
  return [NSMutableData class];
}

@end
