#import "ort_execution_providers.h"

#include <stdlib.h>

#import "ort_call.h"

BOOL ORTIsCoreMLExecutionProviderAvailable(void) { return NO; }

@implementation ORTCoreMLExecutionProviderOptions
@synthesize useCPUOnly = _useCPUOnly;
@synthesize useCPUAndGPU = _useCPUAndGPU;
@synthesize enableOnSubgraphs = _enableOnSubgraphs;
@synthesize onlyEnableForDevicesWithANE = _onlyEnableForDevicesWithANE;
@synthesize onlyAllowStaticInputShapes = _onlyAllowStaticInputShapes;
@synthesize createMLProgram = _createMLProgram;
@end

@implementation ORTXnnpackExecutionProviderOptions
@synthesize intra_op_num_threads = _intra_op_num_threads;
@end

// Appends a provider by name. The methods for single providers call this function, too.
static BOOL ORTAppend(const ORTCall *call, NSString *name, NSDictionary *options) {
  OrtSessionOptions *handle = NULL;
  if (!ORTTakeHandle(call, @"self", call->receiver, [ORTSessionOptions class], NO, &handle)) return NO;
  const char *provider = NULL;
  if (!ORTTakeText(call, @"providerName", name, NO, &provider)) return NO;
  if (![options isKindOfClass:[NSDictionary class]])
    return ORTRefuse(call, @"argument providerOptions: expected NSDictionary, found %@",
                     options == nil ? @"nil" : NSStringFromClass([options class]));
  const char **keys ORT_FREED = NULL;
  const char **values ORT_FREED = NULL;
  NSArray *names = [options allKeys];
  if (!ORTTakeTexts(call, @"providerOptions", names, NO, &keys)) return NO;
  NSArray *settings = [options objectsForKeys:names notFoundMarker:[NSNull null]];
  if (!ORTTakeTexts(call, @"providerOptions", settings, NO, &values)) return NO;
  return ORTSucceeded(call, ORTGeneralTable()->SessionOptionsAppendExecutionProvider(handle, provider, keys,
                                                                                     values, [names count]));
}

@implementation ORTSessionOptions (ORTExecutionProviders)

- (BOOL)appendExecutionProvider:(NSString *)providerName
                providerOptions:(NSDictionary<NSString *, NSString *> *)providerOptions
                          error:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  return ORTAppend(&call, providerName, providerOptions);
}

- (BOOL)appendCoreMLExecutionProviderWithOptions:(ORTCoreMLExecutionProviderOptions *)options
                                           error:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  (void)options;  // none of the settings can be used
  return ORTAppend(&call, @"CoreML", @{});
}

- (BOOL)appendCoreMLExecutionProviderWithOptionsV2:(NSDictionary *)providerOptions error:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  return ORTAppend(&call, @"CoreML", providerOptions);
}

- (BOOL)appendXnnpackExecutionProviderWithOptions:(ORTXnnpackExecutionProviderOptions *)options
                                            error:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  (void)options;
  return ORTAppend(&call, @"XNNPACK", @{});
}

@end

@implementation ORTSessionOptions (ORTCustomOperators)

- (BOOL)registerCustomOpsUsingFunctionPointer:(ORTCAPIRegisterCustomOpsFnPtr)registerCustomOpsFn
                                        error:(NSError **)error {
  const ORTCall call = {self, _cmd, error};
  OrtSessionOptions *handle = NULL;
  if (!ORTTakeHandle(&call, @"self", self, [ORTSessionOptions class], NO, &handle)) return NO;
  if (registerCustomOpsFn == NULL)
    return ORTRefuse(&call, @"argument registerCustomOpsFn: expected a function, found NULL");
  return ORTSucceeded(&call, registerCustomOpsFn(handle, OrtGetApiBase()));
}

@end
