// Runs the test methods of all subclasses of XCTestCase, or of those named on the command line.
//
//     tests [CLASS | CLASS/METHOD]…
//
// Prints each failure with file and line, then a summary. Status 0 when every test passed and there was one.
#import <XCTest/XCTest.h>

#include <objc/runtime.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned failures;

NSString *XCTReason(NSString *reason, NSString *format, ...) {
  va_list values;
  va_start(values, format);
  NSString *said = [[[NSString alloc] initWithFormat:format arguments:values] autorelease];
  va_end(values);
  return [said length] == 0 ? reason : [NSString stringWithFormat:@"%@ - %@", reason, said];
}

@implementation XCTestCase

- (void)setUp {
}

- (void)tearDown {
}

- (void)recordFailureInFile:(const char *)file line:(int)line reason:(NSString *)reason {
  // Tests may fail in another thread.
  @synchronized([XCTestCase class]) {
    ++failures;
    printf("%s:%d: error: %s\n", file, line, [reason UTF8String]);
    fflush(stdout);
  }
}

@end

static NSArray<NSString *> *TestsOf(Class cls) {
  NSMutableArray<NSString *> *names = [NSMutableArray array];
  unsigned count = 0;
  Method *methods = class_copyMethodList(cls, &count);
  for (unsigned i = 0; i < count; ++i) {
    NSString *name = NSStringFromSelector(method_getName(methods[i]));
    if ([name hasPrefix:@"test"] && ![name hasSuffix:@":"]) [names addObject:name];
  }
  free(methods);
  return [names sortedArrayUsingSelector:@selector(compare:)];
}

static NSArray<NSString *> *TestClasses(void) {
  NSMutableArray<NSString *> *names = [NSMutableArray array];
  const int count = objc_getClassList(NULL, 0);
  Class *classes = calloc((size_t)count, sizeof *classes);
  objc_getClassList(classes, count);
  for (int i = 0; i < count; ++i) {
    for (Class parent = class_getSuperclass(classes[i]); parent != Nil;
         parent = class_getSuperclass(parent)) {
      if (parent == [XCTestCase class]) [names addObject:NSStringFromClass(classes[i])];
    }
  }
  free(classes);
  return [names sortedArrayUsingSelector:@selector(compare:)];
}

static void RunTest(Class cls, NSString *name) {
  XCTestCase *test = [[cls alloc] init];
  @try {
    [test setUp];
    [test performSelector:NSSelectorFromString(name)];
  } @catch (NSException *exception) {
    [test recordFailureInFile:[NSStringFromClass(cls) UTF8String]
                         line:0
                       reason:[NSString stringWithFormat:@"%@ raised %@: %@", name, [exception name],
                                                         [exception reason]]];
  }
  [test tearDown];
  [test release];
}

int main(int argc, char **argv) {
  unsigned tests = 0, failed = 0;
  @autoreleasepool {
    NSMutableSet<NSString *> *wanted = [NSMutableSet set];
    for (int i = 1; i < argc; ++i) [wanted addObject:@(argv[i])];
    for (NSString *name in TestClasses()) {
      Class cls = NSClassFromString(name);
      for (NSString *test in TestsOf(cls)) {
        NSString *path = [NSString stringWithFormat:@"%@/%@", name, test];
        if ([wanted count] > 0 && ![wanted containsObject:name] && ![wanted containsObject:path]) continue;
        const unsigned before = failures;
        @autoreleasepool {
          RunTest(cls, test);
        }
        ++tests;
        failed += failures > before;
        printf("%s %s\n", failures > before ? "FAILED" : "passed", [path UTF8String]);
      }
    }
  }
  printf("%u tests, %u failed\n", tests, failed);
  return tests > 0 && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
