#import "ort_version.h"

#import "ort_call.h"

NSString *ORTVersion(void) { return ORTTextCopying(OrtGetApiBase()->GetVersionString()); }
