/** \file
 * Tensors, and what is known of their type and shape.
 */
#import <Foundation/Foundation.h>

#import "ort_attributes.h"
#import "ort_enums.h"

NS_ASSUME_NONNULL_BEGIN

@class ORTTensorTypeAndShapeInfo;
@class ORTValueTypeInfo;

/** A value, a dense tensor over memory of its own or of the caller. */
@interface ORTValue : NSObject {
 @private
  struct OrtValue *_handle;
  NSMutableData *_tensorData;
  void *_tensorBytes;
  NSUInteger _tensorSize;
}

- (instancetype)init ORT_UNAVAILABLE;

/**
 * Makes a tensor over data of the caller, without a copy.
 *
 * The tensor keeps the data alive, and sees what is written into it. The length of the data stays as it is: a
 * tensor whose data has become shorter or moved is refused by whatever it is given to.
 *
 * @param tensorData The elements, row by row.
 * @param elementType Type of the elements.
 * @param shape The extents, whole numbers of 0 or more; an empty array for a scalar.
 * @param error Set when it fails. May be NULL.
 * @return The tensor, or nil when it failed.
 *
 * Errors: ORTErrorCodeInvalidArgument when an argument is nil or of another class, an extent is negative, or
 * the data is smaller than the tensor; ORTErrorCodeNotImplemented when tensors of the type are not supported.
 */
- (nullable instancetype)initWithTensorData:(NSMutableData *)tensorData
                                elementType:(ORTTensorElementDataType)elementType
                                      shape:(NSArray<NSNumber *> *)shape
                                      error:(NSError *_Nullable *_Nullable)error;

/**
 * The kind of the value, and for a tensor its type and shape.
 *
 * @param error Set when it fails. May be NULL.
 * @return What is known of the value, or nil when it failed.
 */
- (nullable ORTValueTypeInfo *)typeInfoWithError:(NSError *_Nullable *_Nullable)error;

/**
 * Element type and shape of the tensor.
 *
 * @param error Set when it fails. May be NULL.
 * @return Type and shape, or nil when it failed.
 */
- (nullable ORTTensorTypeAndShapeInfo *)tensorTypeAndShapeInfoWithError:(NSError *_Nullable *_Nullable)error;

/**
 * The elements of the tensor, row by row, without a copy.
 *
 * What is written into the data is written into the tensor. The data keeps the memory alive, so it may be
 * used after the tensor is gone. For a tensor over data of the caller it is that data. For any other its
 * length cannot be changed; trying to raises NSInvalidArgumentException. Its copies are data of their own.
 *
 * @param error Set when it fails. May be NULL.
 * @return The elements, or nil when it failed.
 */
- (nullable NSMutableData *)tensorDataWithError:(NSError *_Nullable *_Nullable)error;

@end

/** What is known of a value. */
@interface ORTValueTypeInfo : NSObject {
 @private
  ORTValueType _type;
  ORTTensorTypeAndShapeInfo *_tensorTypeAndShapeInfo;
}

- (instancetype)init ORT_UNAVAILABLE;

/** What kind the value is. */
@property(nonatomic, readonly) ORTValueType type;

/** Type and shape of a tensor, nil for a value that is none. */
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

/** The extents, -1 for one that a model leaves open; an empty array for a scalar. */
@property(nonatomic, readonly) NSArray<NSNumber *> *shape;

@end

NS_ASSUME_NONNULL_END
