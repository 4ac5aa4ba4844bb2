/** \file
 * Custom operators, and execution providers. There is only the provider of the CPU: methods that ask for
 * another one fail and name those that are available.
 */
#import <Foundation/Foundation.h>

#import "ort_attributes.h"
#import "ort_custom_op_registration.h"
#import "ort_session.h"

NS_ASSUME_NONNULL_BEGIN

#ifdef __cplusplus
extern "C" {
#endif

/** Whether the execution provider CoreML is available: NO. */
BOOL ORTIsCoreMLExecutionProviderAvailable(void);

#ifdef __cplusplus
}
#endif

/** Settings of the execution provider CoreML, which is not available. */
@interface ORTCoreMLExecutionProviderOptions : NSObject {
 @private
  BOOL _useCPUOnly;
  BOOL _useCPUAndGPU;
  BOOL _enableOnSubgraphs;
  BOOL _onlyEnableForDevicesWithANE;
  BOOL _onlyAllowStaticInputShapes;
  BOOL _createMLProgram;
}
@property(nonatomic) BOOL useCPUOnly;
@property(nonatomic) BOOL useCPUAndGPU;
@property(nonatomic) BOOL enableOnSubgraphs;
@property(nonatomic) BOOL onlyEnableForDevicesWithANE;
@property(nonatomic) BOOL onlyAllowStaticInputShapes;
@property(nonatomic) BOOL createMLProgram;
@end

/** Settings of the execution provider XNNPACK, which is not available. */
@interface ORTXnnpackExecutionProviderOptions : NSObject {
 @private
  int _intra_op_num_threads;
}
@property(nonatomic) int intra_op_num_threads;
@end

@interface ORTSessionOptions (ORTExecutionProviders)

/**
 * Asks for an execution provider by name.
 *
 * @param providerName The name, such as CoreML.
 * @param providerOptions Its settings by name.
 * @param error Set when it fails. May be NULL.
 * @return NO.
 *
 * Errors: ORTErrorCodeInvalidArgument, naming the execution providers that are available.
 */
- (BOOL)appendExecutionProvider:(NSString *)providerName
                providerOptions:(NSDictionary<NSString *, NSString *> *)providerOptions
                          error:(NSError *_Nullable *_Nullable)error;

/**
 * Asks for CoreML, as appendExecutionProvider:providerOptions:error: does.
 *
 * @param options Its settings.
 * @param error Set when it fails. May be NULL.
 * @return NO.
 */
- (BOOL)appendCoreMLExecutionProviderWithOptions:(ORTCoreMLExecutionProviderOptions *)options
                                           error:(NSError *_Nullable *_Nullable)error;

/**
 * Asks for CoreML, as appendExecutionProvider:providerOptions:error: does.
 *
 * @param providerOptions Its settings by name.
 * @param error Set when it fails. May be NULL.
 * @return NO.
 */
- (BOOL)appendCoreMLExecutionProviderWithOptionsV2:(NSDictionary *)providerOptions
                                             error:(NSError *_Nullable *_Nullable)error;

/**
 * Asks for XNNPACK, as appendExecutionProvider:providerOptions:error: does.
 *
 * @param options Its settings.
 * @param error Set when it fails. May be NULL.
 * @return NO.
 */
- (BOOL)appendXnnpackExecutionProviderWithOptions:(ORTXnnpackExecutionProviderOptions *)options
                                            error:(NSError *_Nullable *_Nullable)error;

@end

@interface ORTSessionOptions (ORTCustomOperators)

/**
 * Calls a function that adds custom operators to the options.
 *
 * @param registerCustomOpsFn The function, which is called at once.
 * @param error Set when it fails. May be NULL.
 * @return Whether the function succeeded.
 *
 * Errors: ORTErrorCodeInvalidArgument when the function is NULL; otherwise what the function returns.
 */
- (BOOL)registerCustomOpsUsingFunctionPointer:(ORTCAPIRegisterCustomOpsFnPtr)registerCustomOpsFn
                                        error:(NSError *_Nullable *_Nullable)error;

@end

NS_ASSUME_NONNULL_END
