/** \file
 * Tensors, and their types and shapes.
 */
#import <Foundation/Foundation.h>

#import "ort_attributes.h"
#import "ort_enums.h"

NS_ASSUME_NONNULL_BEGIN

@class ORTTensorTypeAndShapeInfo;
@class ORTValueTypeInfo;

/** A value: a dense tensor of numbers, over its own memory or the caller's, or of strings. */
@interface ORTValue : NSObject {
 @private
  struct OrtValue *_handle;
  NSMutableData *_tensorData;
  void *_tensorBytes;
  NSUInteger _tensorSize;
}

- (instancetype)init ORT_UNAVAILABLE;

/**
 * Creates a tensor over the caller's data, without a copy.
 *
 * The tensor keeps the data alive and shares its contents. The length of the data must not change: a
 * tensor whose data has become shorter or moved is rejected by every method.
 *
 * @param tensorData The elements in row-major order.
 * @param elementType Type of the elements.
 * @param shape The dimensions, whole numbers of 0 or more; an empty array for a scalar.
 * @param error Set when it fails. May be NULL.
 * @return The tensor, or nil on failure.
 *
 * Errors: ORTErrorCodeInvalidArgument when an argument is nil or of another class, a dimension is negative,
 * or the data is smaller than the tensor; ORTErrorCodeNotImplemented when tensors of the type are not
 * supported.
 */
- (nullable instancetype)initWithTensorData:(NSMutableData *)tensorData
                                elementType:(ORTTensorElementDataType)elementType
                                      shape:(NSArray<NSNumber *> *)shape
                                      error:(NSError *_Nullable *_Nullable)error;

/**
 * Creates a tensor of strings, which copies them.
 *
 * @param tensorStringData The elements in row-major order.
 * @param shape The dimensions, whole numbers of 0 or more; an empty array for a scalar.
 * @param error Set when it fails. May be NULL.
 * @return The tensor, or nil on failure.
 *
 * Errors: ORTErrorCodeInvalidArgument when an argument is nil or of another class, a dimension is negative,
 * a string has a null character, or there are not as many strings as elements.
 */
- (nullable instancetype)initWithTensorStringData:(NSArray<NSString *> *)tensorStringData
                                            shape:(NSArray<NSNumber *> *)shape
                                            error:(NSError *_Nullable *_Nullable)error;

/**
 * The kind of the value, and for a tensor its type and shape.
 *
 * @param error Set when it fails. May be NULL.
 * @return The type information of the value, or nil on failure.
 */
- (nullable ORTValueTypeInfo *)typeInfoWithError:(NSError *_Nullable *_Nullable)error;

/**
 * Element type and shape of the tensor.
 *
 * @param error Set when it fails. May be NULL.
 * @return Type and shape, or nil on failure.
 */
- (nullable ORTTensorTypeAndShapeInfo *)tensorTypeAndShapeInfoWithError:(NSError *_Nullable *_Nullable)error;

/**
 * The elements of the tensor, row by row, without a copy.
 *
 * Writing to the data writes to the tensor. The data keeps the memory alive, so it may be
 * used after the tensor is gone. For a tensor over the caller's data, it is that data. For any other its
 * length cannot be changed; trying to raises NSInvalidArgumentException. Its copies are independent.
 *
 * @param error Set when it fails. May be NULL.
 * @return The elements, or nil on failure.
 */
- (nullable NSMutableData *)tensorDataWithError:(NSError *_Nullable *_Nullable)error;

/**
 * The elements of a tensor of strings, row by row, as a copy.
 *
 * @param error Set when it fails. May be NULL.
 * @return The elements, or nil on failure.
 */
- (nullable NSArray<NSString *> *)tensorStringDataWithError:(NSError *_Nullable *_Nullable)error;

@end

/** The type information of a value. */
@interface ORTValueTypeInfo : NSObject {
 @private
  ORTValueType _type;
  ORTTensorTypeAndShapeInfo *_tensorTypeAndShapeInfo;
}

- (instancetype)init ORT_UNAVAILABLE;

/** The kind of the value. */
@property(nonatomic, readonly) ORTValueType type;

/** Type and shape of a tensor, nil for a value that is not a tensor. */
@property(nonatomic, readonly, nullable) ORTTensorTypeAndShapeInfo *tensorTypeAndShapeInfo;

@end

/** Element type and shape of a tensor. */
@interface ORTTensorTypeAndShapeInfo : NSObject {
 @private
  ORTTensorElementDataType _elementType;
  NSArray<NSNumber *> *_shape;
}

- (instancetype)init ORT_UNAVAILABLE;

/** Type of the elements. */
@property(nonatomic, readonly) ORTTensorElementDataType elementType;

/** The dimensions, -1 for an unknown one; an empty array for a scalar. */
@property(nonatomic, readonly) NSArray<NSNumber *> *shape;

@end

NS_ASSUME_NONNULL_END
