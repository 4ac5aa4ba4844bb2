// Every method that existing programs use is present, with its types; selectors.txt lists them.
#import "support.h"

@interface SelectorTests : ORTTestCase
@end

@implementation SelectorTests

// A type as the runtime encodes it.
static NSString *EncodingOf(NSString *type) {
  for (NSString *word in @[ @"nullable ", @"nonnull ", @"_Nullable", @"_Nonnull", @" " ]) {
    type = [type stringByReplacingOccurrencesOfString:word withString:@""];
  }
  if ([type hasSuffix:@"**"]) return @"^@";
  if ([type hasSuffix:@"*"] || [type isEqual:@"instancetype"]) return @"@";
  NSDictionary *numbers = @{
    @"BOOL" : @(@encode(BOOL)),
    @"int" : @(@encode(int)),
    @"int64_t" : @(@encode(int64_t)),
    @"float" : @(@encode(float)),
    @"NSUInteger" : @(@encode(NSUInteger)),
    @"ORTLoggingLevel" : @(@encode(ORTLoggingLevel)),
    @"ORTGraphOptimizationLevel" : @(@encode(ORTGraphOptimizationLevel)),
    @"ORTTensorElementDataType" : @(@encode(ORTTensorElementDataType)),
  };
  return [numbers objectForKey:type];
}

// The entry of a method in the list: its selector, and the encodings of its return value and arguments.
static NSString *ReadDeclaration(NSString *declaration, NSMutableArray<NSString *> *encodings) {
  NSMutableString *selector = [NSMutableString string];
  NSArray *parts = [declaration componentsSeparatedByString:@"("];
  for (NSUInteger i = 1; i < [parts count]; ++i) {
    NSArray *halves = [[parts objectAtIndex:i] componentsSeparatedByString:@")"];
    NSString *encoding = EncodingOf([halves objectAtIndex:0]);
    [encodings addObject:encoding == nil ? [halves objectAtIndex:0] : encoding];
    NSString *last = [[[halves objectAtIndex:1] componentsSeparatedByString:@" "] lastObject];
    if ([last hasSuffix:@":"]) [selector appendString:last];
  }
  return selector;
}

- (void)testEveryMethodOfTheListExistsWithItsTypes {
  NSString *list = [NSString stringWithContentsOfFile:@TEST_SELECTORS
                                             encoding:NSUTF8StringEncoding
                                                error:NULL];
  NSUInteger found = 0;
  for (NSString *line in [list componentsSeparatedByString:@"\n"]) {
    if ([line length] == 0 || [line hasPrefix:@"#"]) continue;
    NSArray *columns = [line componentsSeparatedByString:@" | "];
    Class cls = NSClassFromString([columns objectAtIndex:0]);
    NSMutableArray<NSString *> *encodings = [NSMutableArray array];
    NSString *selector = ReadDeclaration([columns objectAtIndex:1], encodings);
    NSMethodSignature *signature = [cls instanceMethodSignatureForSelector:NSSelectorFromString(selector)];
    XCTAssertNotNil(signature, @"-[%@ %@] is missing", [columns objectAtIndex:0], selector);
    if (signature == nil) continue;
    ++found;
    // The receiver and the selector come first.
    XCTAssertEqual([signature numberOfArguments], [encodings count] + 1, @"%@", line);
    XCTAssertEqualObjects(@([signature methodReturnType]), [encodings objectAtIndex:0], @"%@", line);
    for (NSUInteger i = 1; i < [encodings count]; ++i) {
      XCTAssertEqualObjects(@([signature getArgumentTypeAtIndex:i + 1]), [encodings objectAtIndex:i],
                            @"argument %lu of %@", (unsigned long)i, line);
    }
  }
  XCTAssertGreaterThan(found, (NSUInteger)35);
}

- (void)testTheFunctionsAndTheErrorDomain {
  XCTAssertEqualObjects(ORTErrorDomain, @"onnxruntime");
  XCTAssertTrue([ORTVersion() rangeOfString:@"+ortrain."].location != NSNotFound, @"%@", ORTVersion());
  ORTSetSeed(1);
}

- (void)testEnumerationsHaveTheNumbersOfTheCInterface {
  XCTAssertEqual((int)ORTTensorElementDataTypeFloat, 1);
  XCTAssertEqual((int)ORTTensorElementDataTypeInt64, 7);
  XCTAssertEqual((int)ORTTensorElementDataTypeBFloat16, 16);
  XCTAssertEqual((int)ORTValueTypeTensor, 1);
  XCTAssertEqual((int)ORTLoggingLevelFatal, 4);
  XCTAssertEqual((int)ORTGraphOptimizationLevelAll, 99);
  XCTAssertEqual((int)ORTErrorCodeNotFound, 14);
  XCTAssertEqual((int)ORTPropertyTypeString, 2);
  XCTAssertEqual(sizeof(ORTTensorElementDataType), sizeof(int32_t));
}

@end
