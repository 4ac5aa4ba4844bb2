#import "ort_env.h"

#import "ort_arc.h"
#import "ort_call.h"

NSString *ORTVersion(void) { return ORTTextCopying(OrtGetApiBase()->GetVersionString()); }

@interface ORTEnv () <ORTHandleOwner>
@end

@implementation ORTEnv

- (instancetype)initWithLoggingLevel:(ORTLoggingLevel)loggingLevel error:(NSError **)error {
  if ((self = [super init])) {
    const ORTCall call = {self, _cmd, error};
    if (!ORTSucceeded(&call,
                      ORTGeneralTable()->CreateEnv((OrtLoggingLevel)loggingLevel, "ortrain", &_handle))) {
      ORT_RELEASE(self);
      return nil;
    }
  }
  return self;
}

- (void)dealloc {
  if (_handle != NULL) ORTGeneralTable()->ReleaseEnv(_handle);
  ORT_DEALLOC_SUPER();
}

- (void *)handle {
  return _handle;
}

@end
