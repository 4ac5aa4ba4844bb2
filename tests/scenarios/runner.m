// Runs a scenario with the Objective-C API; README.md beside this file says what a scenario is.
#import <Foundation/Foundation.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#import "onnxruntime_training.h"

#if defined(__has_feature)
#if __has_feature(objc_arc)
#define COUNTED 1
#endif
#endif
#ifdef COUNTED
#define AUTORELEASED(object) (object)
#else
#define AUTORELEASED(object) [(object) autorelease]
#endif

static NSString *script_path, *data_folder, *out_folder, *command = @"";
static NSUInteger script_line;
static BOOL logging = YES;

static ORTEnv *env;
static NSMutableDictionary<NSString *, id> *objects;  // by label

// Ends the runner: the script is at fault, or something went otherwise than it says.
static void stop(NSString *format, ...) NS_FORMAT_FUNCTION(1, 2);
static void stop(NSString *format, ...) {
  va_list values;
  va_start(values, format);
  NSString *why = AUTORELEASED([[NSString alloc] initWithFormat:format arguments:values]);
  va_end(values);
  fflush(stdout);
  fprintf(stderr, "%s:%lu: %s: %s\n", [script_path UTF8String], (unsigned long)script_line,
          [command UTF8String], [why UTF8String]);
  exit(1);
}

static void write_log(NSString *format, ...) NS_FORMAT_FUNCTION(1, 2);
static void write_log(NSString *format, ...) {
  if (!logging) return;
  va_list values;
  va_start(values, format);
  NSString *line = AUTORELEASED([[NSString alloc] initWithFormat:format arguments:values]);
  va_end(values);
  printf("%s\n", [line UTF8String]);
}

// Labels.

static id find(NSString *label, Class cls, NSString *kind) {
  id object = [objects objectForKey:label];
  if (![object isKindOfClass:cls]) stop(@"%@ is no %@", label, kind);
  return object;
}

static ORTCheckpoint *state_of(NSString *label) { return find(label, [ORTCheckpoint class], @"state"); }
static ORTTrainingSession *session_of(NSString *label) {
  return find(label, [ORTTrainingSession class], @"session");
}
static ORTSession *model_of(NSString *label) { return find(label, [ORTSession class], @"model"); }
static ORTValue *tensor_of(NSString *label) { return find(label, [ORTValue class], @"tensor"); }

static NSArray<ORTValue *> *tensors_of(NSArray<NSString *> *labels) {
  NSMutableArray<ORTValue *> *values = [NSMutableArray arrayWithCapacity:[labels count]];
  for (NSString *label in labels) [values addObject:tensor_of(label)];
  return values;
}

// NO for an object that could not be made.
static BOOL keep(NSString *label, id object) {
  if (object == nil) return NO;
  [objects setObject:object forKey:label];
  return YES;
}

// Numbers and tensors as the script writes them.

static int64_t read_integer(NSString *text) {
  char *end = NULL;
  const char *bytes = [text UTF8String];
  const long long value = strtoll(bytes, &end, 10);
  if (*bytes == '\0' || *end != '\0') stop(@"%@ is not a whole number", text);
  return value;
}

static float read_number(NSString *text) {
  char *end = NULL;
  float value = 0;
  if ([text hasPrefix:@"bits:"]) {
    const uint32_t bits = (uint32_t)strtoul([text UTF8String] + 5, &end, 16);
    memcpy(&value, &bits, sizeof value);
  } else {
    value = (float)strtod([text UTF8String], &end);
  }
  if (*end != '\0') stop(@"%@ is not a number", text);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static const struct type {
  const char *name;
  ORTTensorElementDataType type;
  NSUInteger bytes;
} kTypes[] = {
    {"float", ORTTensorElementDataTypeFloat, 4},   {"float16", ORTTensorElementDataTypeFloat16, 2},
    {"double", ORTTensorElementDataTypeDouble, 8}, {"int64", ORTTensorElementDataTypeInt64, 8},
    {"int32", ORTTensorElementDataTypeInt32, 4},   {"bool", ORTTensorElementDataTypeBool, 1},
};

static const struct type *type_named(NSString *name) {
  for (size_t i = 0; i < sizeof kTypes / sizeof *kTypes; ++i) {
    if ([name isEqualToString:@(kTypes[i].name)]) return &kTypes[i];
  }
  stop(@"there is no type %@", name);
  return NULL;
}

static NSArray<NSNumber *> *read_shape(NSString *text) {
  NSMutableArray<NSNumber *> *shape = [NSMutableArray array];
  if ([text isEqualToString:@"-"]) return shape;
  for (NSString *dim in [text componentsSeparatedByString:@"x"]) [shape addObject:@(read_integer(dim))];
  return shape;
}

static NSUInteger size_of(const struct type *type, NSArray<NSNumber *> *shape) {
  NSUInteger size = type->bytes;
  for (NSNumber *dim in shape) size *= [dim unsignedIntegerValue];
  return size;
}

static ORTValue *make_tensor(const struct type *type, NSArray<NSNumber *> *shape, NSMutableData *data) {
  NSError *error = nil;
  ORTValue *value = [[ORTValue alloc] initWithTensorData:data
                                             elementType:type->type
                                                   shape:shape
                                                   error:&error];
  if (value == nil) stop(@"%@", [error localizedDescription]);
  return AUTORELEASED(value);
}

static const struct type *type_of(NSString *what, ORTTensorTypeAndShapeInfo *info) {
  for (size_t i = 0; i < sizeof kTypes / sizeof *kTypes; ++i) {
    if (kTypes[i].type == [info elementType]) return &kTypes[i];
  }
  stop(@"%@ is of type %d", what, (int)[info elementType]);
  return NULL;
}

static NSString *dims_of(ORTTensorTypeAndShapeInfo *info) {
  return [[info shape] count] == 0 ? @"-" : [[info shape] componentsJoinedByString:@"x"];
}

static void log_tensor(NSString *what, ORTValue *value) {
  if (!logging) return;
  ORTTensorTypeAndShapeInfo *info = [value tensorTypeAndShapeInfoWithError:NULL];
  NSData *data = [value tensorDataWithError:NULL];
  const struct type *type = type_of(what, info);
  if (data == nil) stop(@"%@ has no data", what);
  NSString *dims = dims_of(info);
  if ([[info shape] count] == 0 && type->type == ORTTensorElementDataTypeFloat) {
    write_log(@"%@ %s %@ %08" PRIx32, what, type->name, dims, bits_of(*(const float *)[data bytes]));
    return;
  }
  const unsigned char *bytes = [data bytes];
  const NSUInteger length = [data length];
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (NSUInteger i = 0; i < length; ++i) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  write_log(@"%@ %s %@ %016" PRIx64, what, type->name, dims, hash);
}

static NSData *read_file(NSString *path) {
  NSData *content = [NSData dataWithContentsOfFile:path];
  if (content == nil) stop(@"cannot read %@", path);
  return content;
}

static BOOL flag(NSString *text, NSString *yes, NSString *no) {
  if (![text isEqualToString:yes] && ![text isEqualToString:no]) {
    stop(@"expected %@ or %@, found %@", yes, no, text);
  }
  return [text isEqualToString:yes];
}

// Commands: each gets its arguments, and returns NO with the error of the library.

typedef NSArray<NSString *> Arguments;

// The arguments from a place on.
static Arguments *from(Arguments *arguments, NSUInteger begin) {
  return [arguments subarrayWithRange:NSMakeRange(begin, [arguments count] - begin)];
}

static NSString *optional(NSString *path) { return [path isEqualToString:@"-"] ? nil : path; }

static NSUInteger count_at(Arguments *arguments, NSUInteger at) {
  const int64_t count = read_integer([arguments objectAtIndex:at]);
  if (count < 0 || count >= (int64_t)([arguments count] - at - 1))
    stop(@"there are no tensors for the outputs");
  return (NSUInteger)count;
}

// As many tensors as an argument says, which stand behind it.
static NSArray<ORTValue *> *counted(Arguments *arguments, NSUInteger at) {
  return tensors_of([arguments subarrayWithRange:NSMakeRange(at + 1, count_at(arguments, at))]);
}

// The tensors behind counted ones.
static NSArray<ORTValue *> *rest(Arguments *arguments, NSUInteger at) {
  return tensors_of(from(arguments, at + count_at(arguments, at - 1)));
}

static NSUInteger count_of_pairs(Arguments *arguments, NSUInteger at) {
  const int64_t count = read_integer([arguments objectAtIndex:at]);
  if (count < 0 || 2 * count > (int64_t)([arguments count] - at - 1)) stop(@"there are not so many inputs");
  return (NSUInteger)count;
}

// As many pairs of a name and a tensor as an argument says, which stand behind it.
static Arguments *pairs_counted(Arguments *arguments, NSUInteger at) {
  return [arguments subarrayWithRange:NSMakeRange(at + 1, 2 * count_of_pairs(arguments, at))];
}

// The arguments behind counted pairs.
static Arguments *behind_pairs(Arguments *arguments, NSUInteger at) {
  return from(arguments, at + 2 * count_of_pairs(arguments, at - 1));
}

static NSArray<NSString *> *names_of(Arguments *pairs) {
  NSMutableArray<NSString *> *names = [NSMutableArray array];
  for (NSUInteger i = 0; i < [pairs count]; i += 2) [names addObject:[pairs objectAtIndex:i]];
  return names;
}

static NSDictionary<NSString *, ORTValue *> *values_of(Arguments *pairs) {
  NSMutableDictionary<NSString *, ORTValue *> *values = [NSMutableDictionary dictionary];
  if ([pairs count] % 2 != 0) stop(@"there is no tensor for %@", [pairs lastObject]);
  for (NSUInteger i = 0; i < [pairs count]; i += 2) {
    [values setObject:tensor_of([pairs objectAtIndex:i + 1]) forKey:[pairs objectAtIndex:i]];
  }
  return values;
}

static ORTSessionOptions *make_options(void) {
  NSError *error = nil;
  ORTSessionOptions *options = AUTORELEASED([[ORTSessionOptions alloc] initWithError:&error]);
  if (options == nil) stop(@"%@", [error localizedDescription]);
  return options;
}

// What is nil could not be made: nothing is logged, and the command fails.

static BOOL log_value(NSString *what, ORTValue *value) {
  if (value != nil) log_tensor(what, value);
  return value != nil;
}

static BOOL log_float(NSString *what, float value) {
  write_log(@"%@ %08" PRIx32, what, bits_of(value));
  return YES;
}

static BOOL log_int64(NSString *what, int64_t value) {
  write_log(@"%@ %" PRId64, what, value);
  return YES;
}

static BOOL log_string(NSString *what, NSString *text) {
  if (text != nil) write_log(@"%@ %@", what, text);
  return text != nil;
}

static BOOL log_strings(NSString *what, NSArray<NSString *> *texts) {
  return texts != nil && log_string(what, [texts componentsJoinedByString:@" "]);
}

static BOOL log_each(NSString *what, NSArray<NSString *> *names, NSArray<ORTValue *> *values) {
  if (names == nil) return NO;
  for (NSUInteger i = 0; i < [values count]; ++i)
    log_tensor([NSString stringWithFormat:@"%@ %@", what, [names objectAtIndex:i]], [values objectAtIndex:i]);
  return YES;
}

static BOOL log_named(NSString *what, NSArray<NSString *> *names,
                      NSDictionary<NSString *, ORTValue *> *values) {
  if (values == nil) return NO;
  for (NSString *name in names)
    log_tensor([NSString stringWithFormat:@"%@ %@", what, name], [values objectForKey:name]);
  return YES;
}

static BOOL command_tensor(Arguments *arguments, NSError **error) {
  (void)error;
  NSData *content = read_file([arguments objectAtIndex:1]);
  const char *newline = memchr([content bytes], '\n', [content length]);
  if (newline == NULL) stop(@"%@ is not a tensor file", [arguments objectAtIndex:1]);
  const NSUInteger start = (NSUInteger)(newline - (const char *)[content bytes]) + 1;
  NSString *header = AUTORELEASED([[NSString alloc] initWithBytes:[content bytes]
                                                           length:start - 1
                                                         encoding:NSUTF8StringEncoding]);
  NSArray<NSString *> *words = [header componentsSeparatedByString:@" "];
  if ([words count] != 2) stop(@"%@ is not a tensor file", [arguments objectAtIndex:1]);
  const struct type *type = type_named([words objectAtIndex:0]);
  NSArray<NSNumber *> *shape = read_shape([words objectAtIndex:1]);
  if ([content length] - start != size_of(type, shape))
    stop(@"%@ has another size", [arguments objectAtIndex:1]);
  NSRange elements = NSMakeRange(start, [content length] - start);
  NSMutableData *data = [NSMutableData dataWithData:[content subdataWithRange:elements]];
  return keep([arguments objectAtIndex:0], make_tensor(type, shape, data));
}

static BOOL command_zeros(Arguments *arguments, NSError **error) {
  (void)error;
  const struct type *type = type_named([arguments objectAtIndex:1]);
  NSArray<NSNumber *> *shape = read_shape([arguments objectAtIndex:2]);
  NSMutableData *data = [NSMutableData dataWithLength:size_of(type, shape)];
  return keep([arguments objectAtIndex:0], make_tensor(type, shape, data));
}

static BOOL command_show(Arguments *arguments, NSError **error) {
  (void)error;
  log_tensor(@"tensor", tensor_of([arguments objectAtIndex:0]));
  return YES;
}

static BOOL command_describe(Arguments *arguments, NSError **error) {
  ORTSession *of = model_of([arguments objectAtIndex:0]);
  for (NSString *what in @[ @"input", @"output" ]) {
    const BOOL is_input = [what isEqualToString:@"input"];
    NSArray<NSString *> *names = is_input ? [of inputNamesWithError:error] : [of outputNamesWithError:error];
    if (names == nil) return NO;
    for (NSUInteger i = 0; i < [names count]; ++i) {
      ORTValueTypeInfo *declared =
          is_input ? [of inputTypeInfoAtIndex:i error:error] : [of outputTypeInfoAtIndex:i error:error];
      if (declared == nil) return NO;
      ORTTensorTypeAndShapeInfo *info = [declared tensorTypeAndShapeInfo];
      write_log(@"%@ %@ %s %@", what, [names objectAtIndex:i], type_of(what, info) -> name, dims_of(info));
    }
  }
  return YES;
}

// The pool around the line gives up what else holds the object.
static BOOL command_release(Arguments *arguments, NSError **error) {
  (void)error;
  NSString *label = [arguments objectAtIndex:0];
  if ([objects objectForKey:label] == nil) stop(@"%@ names nothing", label);
  [objects removeObjectForKey:label];
  return YES;
}

static BOOL command_log(Arguments *arguments, NSError **error) {
  (void)error;
  logging = flag([arguments objectAtIndex:0], @"on", @"off");
  return YES;
}

static BOOL command_resident(Arguments *arguments, NSError **error) {
  (void)arguments;
  (void)error;
  FILE *file = fopen("/proc/self/status", "r");
  if (file == NULL) stop(@"cannot open /proc/self/status");
  char line[256];
  long kib = -1;
  while (kib < 0 && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "VmRSS: %ld", &kib) != 1) kib = -1;
  }
  fclose(file);
  write_log(@"resident %ld", kib);
  return YES;
}

static int compare_times(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static BOOL command_measure(Arguments *arguments, NSError **error) {
  const int64_t steps = read_integer([arguments objectAtIndex:0]);
  if (steps < 1) stop(@"expected 1 step or more");
  ORTTrainingSession *on = session_of([arguments objectAtIndex:1]);
  NSArray<ORTValue *> *inputs =
      tensors_of([arguments subarrayWithRange:NSMakeRange(2, [arguments count] - 2)]);
  // Made by the first step, written into by the others.
  NSArray<ORTValue *> *outputs = [on trainStepWithInputValues:inputs error:error];
  if (outputs == nil) return NO;
  int64_t *times = malloc((size_t)steps * sizeof *times);
  if (times == NULL) stop(@"out of memory");
  BOOL done = YES;
  for (int64_t i = 0; i < steps && done; ++i) {
    const int64_t began = nanoseconds();
    done = [on trainStepWithInputValues:inputs outputValues:outputs runOptions:nil error:error];
    times[i] = nanoseconds() - began;
  }
  qsort(times, (size_t)steps, sizeof *times, compare_times);
  if (done) write_log(@"nanoseconds %" PRId64, times[(steps - 1) / 2]);
  free(times);
  return done;
}

enum { kMost = 64 };

#include "generated/objc/commands.h"

static BOOL run_command(NSArray<NSString *> *tokens, NSError **error) {
  const char *name = [[tokens objectAtIndex:0] UTF8String];
  const NSUInteger count = [tokens count] - 1;
  for (size_t i = 0; i < sizeof kCommands / sizeof *kCommands; ++i) {
    if (strcmp(kCommands[i].name, name) != 0) continue;
    if (count < kCommands[i].fewest || count > kCommands[i].most) stop(@"wrong number of tokens");
    return kCommands[i].run([tokens subarrayWithRange:NSMakeRange(1, count)], error);
  }
  stop(@"there is no such command");
  return NO;
}

static void run_line(NSArray<NSString *> *tokens) {
  const BOOL fails = [[tokens objectAtIndex:0] isEqualToString:@"fails"];
  if (fails && [tokens count] < 3) stop(@"wrong number of tokens");
  NSArray<NSString *> *rest = fails ? [tokens subarrayWithRange:NSMakeRange(2, [tokens count] - 2)] : tokens;
  NSError *error = nil;
  const BOOL done = run_command(rest, &error);
  NSString *said = [error localizedDescription];
  if (!done && ![[error domain] isEqualToString:ORTErrorDomain])
    stop(@"an error of the domain %@", [error domain]);
  if (!fails) {
    if (!done) stop(@"error %ld: %@", (long)[error code], said);
    return;
  }
  const int64_t code = read_integer([tokens objectAtIndex:1]);
  if (done) stop(@"expected an error of code %" PRId64 ", found none", code);
  if ([error code] != code) {
    stop(@"expected an error of code %" PRId64 ", found %ld: %@", code, (long)[error code], said);
  }
  write_log(@"error %" PRId64 " %@", code, said);
}

// Scripts.

static NSArray<NSString *> *tokens_of(NSString *line, int64_t number) {
  NSMutableArray<NSString *> *tokens = [NSMutableArray array];
  if ([line hasPrefix:@"#"]) return tokens;
  for (NSString *word in [line componentsSeparatedByString:@" "]) {
    if ([word length] == 0) continue;
    NSString *token = word;
    if ([token hasPrefix:@"data:"])
      token = [NSString stringWithFormat:@"%@/%@", data_folder, [token substringFromIndex:5]];
    if ([word hasPrefix:@"out:"])
      token = [NSString stringWithFormat:@"%@/%@", out_folder, [token substringFromIndex:4]];
    NSString *digits = [NSString stringWithFormat:@"%" PRId64, number];
    [tokens addObject:[token stringByReplacingOccurrencesOfString:@"{}" withString:digits]];
  }
  return tokens;
}

// The `end` that belongs to the `repeat` at `start`.
static NSUInteger end_of(NSArray<NSString *> *lines, NSUInteger start) {
  int depth = 0;
  for (NSUInteger at = start; at < [lines count]; ++at) {
    NSArray<NSString *> *tokens = tokens_of([lines objectAtIndex:at], 0);
    NSString *first = [tokens count] > 0 ? [tokens objectAtIndex:0] : @"";
    if ([first isEqualToString:@"repeat"]) ++depth;
    if ([first isEqualToString:@"end"] && --depth == 0) return at;
  }
  stop(@"this repeat has no end");
  return 0;
}

static void run_lines(NSArray<NSString *> *lines, NSUInteger begin, NSUInteger end, int64_t number) {
  for (NSUInteger at = begin; at < end; ++at) {
    // What a line made on the way goes with it.
    @autoreleasepool {
      script_line = at + 1;
      command = [lines objectAtIndex:at];
      NSArray<NSString *> *tokens = tokens_of(command, number);
      if ([tokens count] == 0) continue;
      if (![[tokens objectAtIndex:0] isEqualToString:@"repeat"]) {
        run_line(tokens);
        continue;
      }
      if ([tokens count] != 2 && [tokens count] != 3) stop(@"wrong number of tokens");
      const NSUInteger last = end_of(lines, at);
      const int64_t rounds = read_integer([tokens objectAtIndex:1]);
      const int64_t first = [tokens count] == 3 ? read_integer([tokens objectAtIndex:2]) : 0;
      for (int64_t i = first; i < first + rounds; ++i) run_lines(lines, at + 1, last, i);
      at = last;
    }
  }
}

int main(int argc, char **argv) {
  @autoreleasepool {
    if (argc != 4) {
      fprintf(stderr, "usage: %s SCRIPT DATA OUT\n", argv[0]);
      return 1;
    }
    script_path = @(argv[1]);
    data_folder = @(argv[2]);
    out_folder = @(argv[3]);
    NSError *error = nil;
    env = AUTORELEASED([[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelError error:&error]);
    if (env == nil) stop(@"%@", [error localizedDescription]);
    objects = [NSMutableDictionary dictionary];

    NSString *script = AUTORELEASED([[NSString alloc] initWithData:read_file(script_path)
                                                          encoding:NSUTF8StringEncoding]);
    NSArray<NSString *> *lines = [script componentsSeparatedByString:@"\n"];
    run_lines(lines, 0, [lines count], 0);
    [objects removeAllObjects];
  }
  return 0;
}
