/* Gives the examples of the pages their batches: sixteen rows of images.bin and labels.bin at a time, five
 * passes over the data. It is compiled as the language of the example, C++ included. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRows = 16, kWidth = 64, kRounds = 5 };

static FILE* open_file(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  return file;
}

bool next_batch(float* images, int64_t* labels) {
  static FILE *image_file, *label_file;
  static int rounds;
  if (image_file == NULL) {
    image_file = open_file("images.bin");
    label_file = open_file("labels.bin");
  }
  for (; rounds < kRounds; ++rounds) {
    if (fread(images, sizeof *images * kWidth, kRows, image_file) == kRows &&
        fread(labels, sizeof *labels, kRows, label_file) == kRows)
      return true;
    rewind(image_file);
    rewind(label_file);
  }
  return false;
}
