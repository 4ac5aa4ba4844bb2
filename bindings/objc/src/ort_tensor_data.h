// The elements of a tensor as data that keeps the tensor alive.
#pragma once

#import <Foundation/Foundation.h>

#import "ort_value.h"

@interface ORTTensorData : NSMutableData {
 @private
  ORTValue *_value;
  void *_bytes;
  NSUInteger _length;
}

/** Data over memory that is valid as long as the value. */
- (instancetype)initWithValue:(ORTValue *)value bytes:(void *)bytes length:(NSUInteger)length;

@end
