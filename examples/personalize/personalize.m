// Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for
// details.
#import <Foundation/Foundation.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#import "onnxruntime_training.h"

#if defined(__has_feature)
#if __has_feature(objc_arc)
#define AUTORELEASED(object) (object)
#endif
#endif
#ifndef AUTORELEASED
#define AUTORELEASED(object) [(object) autorelease]
#endif

// Errors.

static void fail(NSString *format, ...) __attribute__((noreturn)) NS_FORMAT_FUNCTION(1, 2);
static void fail(NSString *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  NSString *message = AUTORELEASED([[NSString alloc] initWithFormat:format arguments:arguments]);
  va_end(arguments);
  fprintf(stderr, "error: %s\n", [message UTF8String]);
  exit(1);
}

// A method that fails signals it with its return value and sets the error.
static void check(BOOL done, NSError *error) {
  if (!done) fail(@"%@", [error localizedDescription]);
}

// Samples.

@interface Samples : NSObject {
 @private
  NSMutableData *_pixels;
  NSMutableData *_labels;
  NSUInteger _size, _classes;
}

/** Samples with the same number of pixels each. */
+ (Samples *)samplesOfSize:(NSUInteger)size;

/** Adds all images of a folder, sorted by class and name. */
- (void)readFolder:(NSString *)folder;

/** The pixels of a sample, from 0 to 1. */
- (const float *)pixelsOf:(NSUInteger)sample;
- (int64_t)labelOf:(NSUInteger)sample;

- (NSUInteger)count;
- (NSUInteger)classes;
- (NSUInteger)size;

@end

@implementation Samples

+ (Samples *)samplesOfSize:(NSUInteger)size {
  Samples *samples = AUTORELEASED([[Samples alloc] init]);
  samples->_size = size;
  samples->_pixels = [[NSMutableData alloc] init];
  samples->_labels = [[NSMutableData alloc] init];
  return samples;
}

#if !__has_feature(objc_arc)
- (void)dealloc {
  [_pixels release];
  [_labels release];
  [super dealloc];
}
#endif

static NSComparisonResult CompareNames(id one, id other, void *context) {
  (void)context;
  const int order = strcmp([one UTF8String], [other UTF8String]);
  return order < 0 ? NSOrderedAscending : order > 0 ? NSOrderedDescending : NSOrderedSame;
}

static NSComparisonResult CompareClasses(id one, id other, void *context) {
  const int order = [one intValue] - [other intValue];
  if (order == 0) return CompareNames(one, other, context);
  return order < 0 ? NSOrderedAscending : NSOrderedDescending;
}

// The entries of a folder, sorted, without hidden files.
static NSArray<NSString *> *Entries(NSString *folder, NSInteger (*compare)(id, id, void *)) {
  DIR *directory = opendir([folder UTF8String]);
  if (directory == NULL) fail(@"%@: %s", folder, strerror(errno));
  NSMutableArray<NSString *> *names = [NSMutableArray array];
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] != '.') [names addObject:@(entry->d_name)];
  }
  closedir(directory);
  [names sortUsingFunction:compare context:NULL];
  return names;
}

static BOOL IsWholeNumber(NSString *text) {
  const char *digits = [text UTF8String];
  return *digits != '\0' && strspn(digits, "0123456789") == strlen(digits);
}

- (void)readFolder:(NSString *)folder {
  NSArray<NSString *> *classes = Entries(folder, CompareNames);
  for (NSString *name in classes) {
    BOOL is_folder = NO;
    NSString *path = [NSString stringWithFormat:@"%@/%@", folder, name];
    [[NSFileManager defaultManager] fileExistsAtPath:path isDirectory:&is_folder];
    if (!is_folder || !IsWholeNumber(name) || [name length] > 9) {
      fail(@"%@: expected a folder named by the number of its class", path);
    }
  }
  for (NSString *name in [classes sortedArrayUsingFunction:CompareClasses context:NULL]) {
    NSString *class_folder = [NSString stringWithFormat:@"%@/%@", folder, name];
    for (NSString *image in Entries(class_folder, CompareNames)) {
      @autoreleasepool {
        [self readImage:[NSString stringWithFormat:@"%@/%@", class_folder, image] label:[name intValue]];
      }
    }
  }
  _classes = [classes count];
}

// A number in the header of an image, with the whitespace and comments before it; -1 if there is
// none.
static long ReadNumber(const unsigned char **at, const unsigned char *end) {
  if (*at == end || !isspace(**at)) return -1;
  while (*at < end && (isspace(**at) || **at == '#')) {
    if (**at == '#') {
      while (*at < end && **at != '\n') ++*at;
    } else {
      ++*at;
    }
  }
  long number = -1;
  for (; *at < end && isdigit(**at) && number < 100000000; ++*at) {
    number = (number < 0 ? 0 : number * 10) + (**at - '0');
  }
  return number;
}

- (void)readImage:(NSString *)path label:(int64_t)label {
  NSData *file = [NSData dataWithContentsOfFile:path];
  if (file == nil) fail(@"%@: %s", path, strerror(errno));
  const unsigned char *at = [file bytes], *end = at + [file length];
  const BOOL is_pgm = [file length] > 2 && memcmp(at, "P5", 2) == 0;
  at += is_pgm ? 2 : 0;
  const long width = is_pgm ? ReadNumber(&at, end) : -1;
  const long height = width >= 0 ? ReadNumber(&at, end) : -1;
  const long greatest = height >= 0 ? ReadNumber(&at, end) : -1;
  if (greatest < 1 || greatest > 255 || at == end || !isspace(*at)) {
    fail(@"%@: expected an 8-bit binary PGM image (P5)", path);
  }
  ++at;
  if ((NSUInteger)width * (NSUInteger)height != _size) {
    fail(@"%@: expected %lu pixels, found %ld x %ld", path, (unsigned long)_size, width, height);
  }
  if ((NSUInteger)(end - at) != _size) {
    fail(@"%@: expected %lu bytes of pixels, found %ld", path, (unsigned long)_size, (long)(end - at));
  }
  for (; at < end; ++at) {
    const float pixel = (float)*at / (float)greatest;
    [_pixels appendBytes:&pixel length:sizeof pixel];
  }
  [_labels appendBytes:&label length:sizeof label];
}

- (const float *)pixelsOf:(NSUInteger)sample {
  return (const float *)[_pixels bytes] + sample * _size;
}

- (int64_t)labelOf:(NSUInteger)sample {
  return ((const int64_t *)[_labels bytes])[sample];
}

- (NSUInteger)count {
  return [_labels length] / sizeof(int64_t);
}

- (NSUInteger)classes {
  return _classes;
}

- (NSUInteger)size {
  return _size;
}

@end

// SplitMix64 (Steele, Lea and Flood 2014).
static uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

// Fisher-Yates shuffle.
static void shuffle(NSUInteger *numbers, NSUInteger count, uint64_t state) {
  for (NSUInteger i = count - 1; i > 0; --i) {
    const NSUInteger j = (NSUInteger)(next_random(&state) % (i + 1));
    const NSUInteger other = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = other;
  }
}

// Training.

static NSString *artifacts, *sample_folder, *out_folder, *output_name, *resumed;
static int64_t epochs = 5, batch_size = 16, seed = 0;
static float learning_rate = 1e-3f;

static ORTCheckpoint *state;
static ORTTrainingSession *session;
static Samples *samples;
static NSArray<NSNumber *> *image_shape;            // without the batch
static NSMutableData *batch_images, *batch_labels;  // the batch that a step reads

static NSString *artifact(NSString *name) { return [NSString stringWithFormat:@"%@/%@", artifacts, name]; }

// Queries the session for the shape of its images; returns the number of pixels per image.
static NSUInteger read_input_shape(void) {
  NSError *error = nil;
  ORTTensorTypeAndShapeInfo *info = [session getModelInputTypeInfoWithTraining:YES index:0 error:&error];
  check(info != nil, error);
  NSArray<NSNumber *> *shape = [info shape];
  BOOL fits = [info elementType] == ORTTensorElementDataTypeFloat && [shape count] > 0 &&
              [[shape objectAtIndex:0] longLongValue] == -1;
  NSUInteger size = 1;
  for (NSUInteger i = 1; fits && i < [shape count]; ++i) {
    fits = [[shape objectAtIndex:i] longLongValue] > 0;
    size *= [[shape objectAtIndex:i] unsignedIntegerValue];
  }
  if (!fits) {
    fail(@"%@: expected a first input of floats with a variable batch and fixed dimensions, found type %d of "
         @"shape "
         @"[%@]",
         artifact(@"training_model.onnx"), (int)[info elementType], [shape componentsJoinedByString:@", "]);
  }
  image_shape = [shape subarrayWithRange:NSMakeRange(1, [shape count] - 1)];
  return size;
}

static ORTValue *make_tensor(NSMutableData *data, ORTTensorElementDataType type, NSArray<NSNumber *> *shape) {
  NSError *error = nil;
  ORTValue *value = [[ORTValue alloc] initWithTensorData:data elementType:type shape:shape error:&error];
  check(value != nil, error);
  return AUTORELEASED(value);
}

// Fills the batch with samples and wraps it as tensors. They share its memory; nothing is copied.
static NSArray<ORTValue *> *make_inputs(const NSUInteger *numbers, NSUInteger count) {
  float *images = [batch_images mutableBytes];
  int64_t *labels = [batch_labels mutableBytes];
  for (NSUInteger i = 0; i < count; ++i) {
    memcpy(images + i * [samples size], [samples pixelsOf:numbers[i]], [samples size] * sizeof *images);
    labels[i] = [samples labelOf:numbers[i]];
  }
  NSArray<NSNumber *> *batch = @[ @(count) ];
  return @[
    make_tensor(batch_images, ORTTensorElementDataTypeFloat,
                [batch arrayByAddingObjectsFromArray:image_shape]),
    make_tensor(batch_labels, ORTTensorElementDataTypeInt64, batch)
  ];
}

static float scalar_of(ORTValue *value) {
  NSError *error = nil;
  NSData *data = [value tensorDataWithError:&error];
  check(data != nil, error);
  float number = 0;
  [data getBytes:&number length:sizeof number];
  return number;
}

// Takes a step for every full batch; returns the mean loss.
static double train_epoch(const NSUInteger *order, NSUInteger count, NSString *title) {
  const NSUInteger batch = (NSUInteger)batch_size, steps = count / batch;
  NSDate *began = [NSDate date];
  double total = 0;
  for (NSUInteger step = 1; step <= steps; ++step) {
    @autoreleasepool {
      NSError *error = nil;
      NSArray<ORTValue *> *inputs = make_inputs(order + (step - 1) * batch, batch);
      NSArray<ORTValue *> *outputs = [session trainStepWithInputValues:inputs error:&error];
      check(outputs != nil, error);
      check([session optimizerStepWithError:&error], error);
      check([session lazyResetGradWithError:&error], error);
      total += scalar_of([outputs objectAtIndex:0]);

      if (isatty(STDOUT_FILENO)) {
        char bar[] = "....................";
        memset(bar, '#', 20 * step / steps);
        printf("\r%s  [%s]  %lu/%lu  loss %.4f  %.0f samples/s", [title UTF8String], bar, (unsigned long)step,
               (unsigned long)steps, total / (double)step,
               (double)(step * batch) / fmax(-[began timeIntervalSinceNow], 1e-9));
        fflush(stdout);
      }
    }
  }
  return total / (double)steps;
}

// Counts the samples whose highest score is that of their label; NO if the value holds no scores.
static BOOL count_right(ORTValue *scores, NSUInteger count, NSUInteger *right) {
  NSError *error = nil;
  ORTTensorTypeAndShapeInfo *info = [scores tensorTypeAndShapeInfoWithError:&error];
  check(info != nil, error);
  if ([info elementType] != ORTTensorElementDataTypeFloat || [[info shape] count] != 2) return NO;
  if ([[[info shape] objectAtIndex:0] unsignedIntegerValue] != count) return NO;
  const NSUInteger classes = [[[info shape] objectAtIndex:1] unsignedIntegerValue];
  const int64_t *labels = [batch_labels bytes];
  const float *row = [[scores tensorDataWithError:&error] bytes];
  check(row != NULL, error);
  for (NSUInteger i = 0; i < count; ++i, row += classes) {
    NSUInteger best = 0;
    for (NSUInteger j = 1; j < classes; ++j) {
      if (row[j] > row[best]) best = j;
    }
    *right += (int64_t)best == labels[i];
  }
  return YES;
}

// The mean loss of some samples; `right` becomes the number classified correctly, or NSNotFound if the model
// has no scores.
static double evaluate(const NSUInteger *numbers, NSUInteger count, NSUInteger *right) {
  double total = 0;
  NSUInteger counted = 0;
  BOOL has_scores = NO;
  for (NSUInteger start = 0; start < count; start += (NSUInteger)batch_size) {
    @autoreleasepool {
      NSError *error = nil;
      const NSUInteger size = MIN(count - start, (NSUInteger)batch_size);
      NSArray<ORTValue *> *outputs = [session evalStepWithInputValues:make_inputs(numbers + start, size)
                                                                error:&error];
      check(outputs != nil, error);
      total += (double)scalar_of([outputs objectAtIndex:0]) * (double)size;
      if ([outputs count] > 1) has_scores = count_right([outputs objectAtIndex:1], size, &counted);
    }
  }
  *right = has_scores ? counted : NSNotFound;
  return total / (double)count;
}

// Saves everything needed to resume.
static void save(NSString *path, int64_t epoch, float loss) {
  NSError *error = nil;
  check([state addIntPropertyWithName:@"epochs" value:epoch error:&error], error);
  check([state addFloatPropertyWithName:@"loss" value:loss error:&error], error);
  check([state saveCheckpointToPath:path withOptimizerState:YES error:&error], error);
}

// The number of epochs that a resumed checkpoint has completed.
static int64_t epochs_behind(void) {
  NSError *error = nil;
  const int64_t done = [state getIntPropertyWithName:@"epochs" error:&error];
  if (error != nil) {
    fail(@"%@: expected a checkpoint that this program saved, with the property epochs", resumed);
  }
  return done;
}

// The name of the value to export.
static NSString *choose_output(void) {
  if (output_name != nil) return output_name;
  NSError *error = nil;
  NSArray<NSString *> *names = [session getEvalOutputNamesWithError:&error];
  check(names != nil, error);
  if ([names count] < 2) {
    fail(@"%@: it has no output besides the loss; name a value to export with --output",
         artifact(@"eval_model.onnx"));
  }
  return [names objectAtIndex:1];
}

static void make_session(NSString *checkpoint) {
  NSError *error = nil;
  ORTEnv *env = AUTORELEASED([[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelWarning error:&error]);
  check(env != nil, error);
  ORTSessionOptions *options = AUTORELEASED([[ORTSessionOptions alloc] initWithError:&error]);
  check(options != nil, error);
  state = AUTORELEASED([[ORTCheckpoint alloc] initWithPath:checkpoint error:&error]);
  check(state != nil, error);
  session = AUTORELEASED([[ORTTrainingSession alloc] initWithEnv:env
                                                  sessionOptions:options
                                                      checkpoint:state
                                                  trainModelPath:artifact(@"training_model.onnx")
                                                   evalModelPath:artifact(@"eval_model.onnx")
                                              optimizerModelPath:artifact(@"optimizer_model.onnx")
                                                           error:&error]);
  check(session != nil, error);
}

static void personalize(void) {
  NSString *checkpoint = resumed != nil ? resumed : artifact(@"checkpoint");
  make_session(checkpoint);
  samples = [Samples samplesOfSize:read_input_shape()];
  NSString *output = choose_output();

  [samples readFolder:sample_folder];
  const NSUInteger held_out_count = [samples count] / 5, train_count = [samples count] - held_out_count;
  if (held_out_count < 1 || train_count < (NSUInteger)batch_size) {
    fail(@"%@: expected at least 5 samples and %" PRId64 " for training, found %lu and %lu", sample_folder,
         batch_size, (unsigned long)[samples count], (unsigned long)train_count);
  }
  const int64_t done = resumed != nil ? epochs_behind() : 0;
  if (done >= epochs) {
    fail(@"%@: it has %" PRId64 " epochs already; expected a larger --epochs, found %" PRId64, checkpoint,
         done, epochs);
  }
  if (mkdir([out_folder UTF8String], 0777) != 0 && errno != EEXIST) {
    fail(@"%@: %s", out_folder, strerror(errno));
  }
  printf("%lu samples of %lu classes: %lu for training, %lu held out\n", (unsigned long)[samples count],
         (unsigned long)[samples classes], (unsigned long)train_count, (unsigned long)held_out_count);
  fflush(stdout);

  batch_images = [NSMutableData dataWithLength:(NSUInteger)batch_size * [samples size] * sizeof(float)];
  batch_labels = [NSMutableData dataWithLength:(NSUInteger)batch_size * sizeof(int64_t)];
  NSUInteger *order = calloc(train_count, sizeof *order),
             *held_out = calloc(held_out_count, sizeof *held_out);
  if (order == NULL || held_out == NULL) fail(@"out of memory");
  for (NSUInteger i = 0; i < held_out_count; ++i) held_out[i] = 5 * i + 4;
  NSString *saved = [NSString stringWithFormat:@"%@/checkpoint", out_folder];
  NSString *exported = [NSString stringWithFormat:@"%@/model.onnx", out_folder];

  NSError *error = nil;
  check([session setLearningRate:learning_rate error:&error], error);
  for (int64_t epoch = done + 1; epoch <= epochs; ++epoch) {
    @autoreleasepool {
      NSString *title = [NSString stringWithFormat:@"epoch %" PRId64 "/%" PRId64, epoch, epochs];
      for (NSUInteger i = 0, sample = 0; i < train_count; ++i, ++sample) {
        if (sample % 5 == 4) ++sample;
        order[i] = sample;
      }
      shuffle(order, train_count, ((uint64_t)seed << 32) + (uint64_t)epoch);
      const double loss = train_epoch(order, train_count, title);
      NSUInteger right = 0;
      const double held_out_loss = evaluate(held_out, held_out_count, &right);

      // On a terminal this overwrites the progress line and clears the rest of it.
      const BOOL terminal = isatty(STDOUT_FILENO);
      printf("%s%s: loss %.4f, held-out loss %.4f", terminal ? "\r" : "", [title UTF8String], loss,
             held_out_loss);
      if (right != NSNotFound) {
        const unsigned long tenths = (1000 * right + held_out_count / 2) / held_out_count;
        printf(", accuracy %lu.%lu%%", tenths / 10, tenths % 10);
      }
      puts(terminal ? "\033[K" : "");
      fflush(stdout);
      save(saved, epoch, (float)loss);
    }
  }
  printf("saved %s\n", [saved UTF8String]);
  fflush(stdout);
  check([session exportModelForInferenceWithOutputPath:exported graphOutputNames:@[ output ] error:&error],
        error);
  printf("exported %s with output %s\n", [exported UTF8String], [output UTF8String]);
  free(order);
  free(held_out);
}

// The command line.

static const char kUsage[] =
    "usage: personalize ARTIFACTS SAMPLES OUT [--epochs N] [--batch N] [--learning-rate X] [--seed N]\n"
    "                   [--output NAME] [--resume CHECKPOINT] [--help]\n";

static const char kHelp[] =
    "\n"
    "Fine-tunes a model on a folder of images with one folder per class.\n"
    "\n"
    "  ARTIFACTS            folder of the training artifacts\n"
    "  SAMPLES              folder with one folder of PGM images per class\n"
    "  OUT                  folder for the checkpoint and the trained model\n"
    "  --epochs N           total number of epochs (default 5)\n"
    "  --batch N            samples per step (default 16)\n"
    "  --learning-rate X    learning rate (default 0.001)\n"
    "  --seed N             seed of the shuffling (default 0)\n"
    "  --output NAME        value to export (default: the eval model's second output)\n"
    "  --resume CHECKPOINT  resume from a checkpoint that this program saved\n";

static void refuse_usage(NSString *format, ...) __attribute__((noreturn)) NS_FORMAT_FUNCTION(1, 2);
static void refuse_usage(NSString *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  NSString *message = AUTORELEASED([[NSString alloc] initWithFormat:format arguments:arguments]);
  va_end(arguments);
  fprintf(stderr, "%spersonalize: error: %s\n", kUsage, [message UTF8String]);
  exit(2);
}

static int64_t whole_number(NSString *option, NSString *text, int64_t lowest) {
  const unsigned long long value = IsWholeNumber(text) ? strtoull([text UTF8String], NULL, 10) : UINT64_MAX;
  if (value < (unsigned long long)lowest || value > INT32_MAX) {
    refuse_usage(@"%@: expected a whole number from %" PRId64 " to %d, found %@", option, lowest, INT32_MAX,
                 text);
  }
  return (int64_t)value;
}

static float rate(NSString *option, NSString *text) {
  char *end = NULL;
  const double value = strtod([text UTF8String], &end);
  if (end == [text UTF8String] || *end != '\0' || !isfinite(value) || value <= 0) {
    refuse_usage(@"%@: expected a finite number above 0, found %@", option, text);
  }
  return (float)value;
}

static void read_command_line(int argc, char **argv) {
  NSMutableArray<NSString *> *given = [NSMutableArray array];
  for (int i = 1; i < argc; ++i) {
    NSString *option = @(argv[i]);
    if ([option isEqualToString:@"--help"]) {
      printf("%s%s", kUsage, kHelp);
      exit(0);
    }
    if (![option hasPrefix:@"--"]) {
      if ([given count] == 3) refuse_usage(@"unexpected argument %@", option);
      [given addObject:option];
      continue;
    }
    if (i + 1 == argc) refuse_usage(@"%@: expected a value", option);
    NSString *value = @(argv[++i]);
    if ([option isEqualToString:@"--epochs"]) {
      epochs = whole_number(option, value, 1);
    } else if ([option isEqualToString:@"--batch"]) {
      batch_size = whole_number(option, value, 1);
    } else if ([option isEqualToString:@"--learning-rate"]) {
      learning_rate = rate(option, value);
    } else if ([option isEqualToString:@"--seed"]) {
      seed = whole_number(option, value, 0);
    } else if ([option isEqualToString:@"--output"]) {
      output_name = value;
    } else if ([option isEqualToString:@"--resume"]) {
      resumed = value;
    } else {
      refuse_usage(@"there is no option %@", option);
    }
  }
  NSArray<NSString *> *names = @[ @"ARTIFACTS", @"SAMPLES", @"OUT" ];
  if ([given count] < 3) refuse_usage(@"%@ is missing", [names objectAtIndex:[given count]]);
  artifacts = [given objectAtIndex:0];
  sample_folder = [given objectAtIndex:1];
  out_folder = [given objectAtIndex:2];
}

int main(int argc, char **argv) {
  @autoreleasepool {
    read_command_line(argc, argv);
    personalize();
  }
  return 0;
}
