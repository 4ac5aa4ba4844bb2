// Code that every method runs around its C calls: it converts arguments from Objective-C to C, results back,
// and failures to NSError.
#pragma once

#import <Foundation/Foundation.h>

#import "ort_tables.h"

/** The method that is being called, for its errors. */
typedef struct {
  __unsafe_unretained id receiver;
  SEL selector;
  NSError *__autoreleasing *error;
} ORTCall;

/** The methods of an object that owns a handle of the C library. */
@protocol ORTHandleOwner <NSObject>
/** The handle, NULL in an object that was never initialized. It lives as long as the object. */
- (void *)handle;
@optional
/** Why the handle cannot be used now, or nil. */
- (NSString *)whyUnusable;
@end

/** Objects created from a handle, which they own from then on. */
@protocol ORTHandleTaker <NSObject>
- (instancetype)initWithHandle:(void *)handle;
@end

/** Frees a variable's memory at the end of its scope. */
#define ORT_FREED __attribute__((cleanup(ORTFreeVariable)))
ORT_HIDDEN void ORTFreeVariable(void *variable);

/** An array of values that a call fills; values that were not taken are released at the end of its scope. */
typedef struct {
  size_t count;
  OrtValue **values;
} ORTOutputs;
#define ORT_OUTPUTS_FREED __attribute__((cleanup(ORTFreeOutputs)))
ORT_HIDDEN ORTOutputs ORTMakeOutputs(size_t count);
ORT_HIDDEN void ORTFreeOutputs(ORTOutputs *outputs);

/** Values with their names, in the form that C takes. */
typedef struct {
  size_t count;
  const char **names;
  const OrtValue **values;
} ORTNamedValues;
#define ORT_NAMED_VALUES_FREED __attribute__((cleanup(ORTFreeNamedValues)))
ORT_HIDDEN void ORTFreeNamedValues(ORTNamedValues *named);

/** YES for a null status; else stores it as the error, releases it, and returns NO. */
ORT_HIDDEN BOOL ORTSucceeded(const ORTCall *call, OrtStatus *status);

/** Stores an error with the code ORT_INVALID_ARGUMENT; returns NO. */
ORT_HIDDEN BOOL ORTRefuse(const ORTCall *call, NSString *format, ...) NS_FORMAT_FUNCTION(2, 3);

// Arguments. Each checks the argument and stores its C form; returns NO with an error that names the argument
// if it is invalid. The stored form is valid as long as the argument, or freed by the caller if it is
// an array.
ORT_HIDDEN BOOL ORTTakeText(const ORTCall *call, NSString *name, id text, BOOL optional, const char **out);
ORT_HIDDEN BOOL ORTTakeTexts(const ORTCall *call, NSString *name, id texts, BOOL optional, const char ***out);
ORT_HIDDEN BOOL ORTTakeData(const ORTCall *call, NSString *name, id data, BOOL optional, const void **out);
ORT_HIDDEN BOOL ORTTakeHandle(const ORTCall *call, NSString *name, id object, Class cls, BOOL optional,
                              void *out);
ORT_HIDDEN BOOL ORTTakeValues(const ORTCall *call, NSString *name, id values, BOOL optional,
                              const OrtValue ***out);

/** The strings are in the order of the set's allObjects. */
ORT_HIDDEN BOOL ORTTakeTextSet(const ORTCall *call, NSString *name, id texts, BOOL optional,
                               const char ***out);
ORT_HIDDEN BOOL ORTTakeNamedValues(const ORTCall *call, NSString *name, id values, BOOL optional,
                                   ORTNamedValues *out);

/** The number of elements of a tensor. */
ORT_HIDDEN BOOL ORTCountElements(const ORTCall *call, const OrtValue *value, size_t *out);

/** Stores an error that says which type a property has and which was asked for; returns NO. */
ORT_HIDDEN BOOL ORTRefuseProperty(const ORTCall *call, NSString *name, OrtPropertyType expected,
                                  OrtPropertyType found);

/** The numbers of an array as a C array of elements of the given @encode; every number must be representable.
 */
ORT_HIDDEN BOOL ORTTakeNumbers(const ORTCall *call, NSString *name, id numbers, BOOL optional,
                               const char *element, void *out);

/** Returns memory to the allocator; NULL is ignored. */
ORT_HIDDEN void ORTFreeMemory(void *memory);

// Results. Handles and allocated memory are freed, or owned by the returned object.
ORT_HIDDEN NSString *ORTTextTaking(char *text);
ORT_HIDDEN NSString *ORTTextCopying(const char *text);
ORT_HIDDEN NSData *ORTDataTaking(void *data, size_t size);
ORT_HIDDEN NSArray *ORTValuesTaking(ORTOutputs *outputs);
ORT_HIDDEN NSArray<NSNumber *> *ORTNumbersCopying(const void *numbers, size_t count, const char *element);
ORT_HIDDEN id ORTObjectTaking(Class cls, void *handle);
